"""A report as JUnit XML for continuous integration: a suite for each subject, a test case for each rule.

Peers need not conform and are not listed.
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from conformance.reports.blocks import block, exceeds_profile, levels, refuses_all
from conformance.reports.content import PROJECT, Content, clean_text


def junit(report: Content) -> str:
    root = Element("testsuites", name=PROJECT)
    for subject in (subject for subject in report["subjects"] if not subject["peer"]):
        root.append(suite(report, subject))
    if report["error"] is not None:  # that stopped the judge
        found = SubElement(root, "testsuite", name="conformance", tests="1", failures="0", errors="1", skipped="0")
        case = SubElement(found, "testcase", classname="conformance", name=clean_text(report["command"]))
        SubElement(case, "error", message=clean_text(report["error"]), type="error")
    for total in ("tests", "failures", "errors", "skipped"):
        root.set(total, str(sum(int(part.get(total, "0")) for part in root)))
    root.set("time", f"{report['seconds']:.3f}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def suite(report: Content, subject: Content) -> Element:
    status = ["conforms" if exceeds_profile(rule, subject) else rule["status"] for rule in subject["rules"]]
    counts = {"tests": len(status), "failures": status.count("violated"), "skipped": status.count("untried")}
    found = Element("testsuite", name=clean_text(subject["name"]), errors="0", timestamp=report["written"])
    for name, count in counts.items():
        found.set(name, str(count))
    found.set("time", f"{report['seconds'] if subject['seconds'] is None else subject['seconds']:.3f}")
    told = {name: report[name] for name in ("seed", "effort")}
    told |= {name: subject.get(name) for name in ("arrays", "device", "arrays_guessed", "profile", "kept")}
    told |= {"levels": levels(subject) or None, "never_given": ", ".join(subject.get("never_given") or ()) or None}
    told |= {f"version {package}": version for package, version in report["versions"].items()}
    properties = SubElement(found, "properties")
    for name, value in told.items():
        if value is not None:
            SubElement(properties, "property", name=name, value=clean_text(str(value)))
    for rule in subject["rules"]:
        found.append(test_case(rule, subject))
    return found


def test_case(rule: Content, subject: Content) -> Element:
    case = Element("testcase", classname=clean_text(subject["name"]), name=f"{rule['rule']} {rule['title']}")
    if rule["status"] == "untried":
        SubElement(case, "skipped", message=clean_text(subject["untried"] or "no case was tried"))
    violations = [violation for violation in subject["violations"] if violation["rule"] == rule["rule"]]
    causes = [block(cause, subject) for cause in subject["causes"] if rule["rule"] in cause["rules"]]
    if exceeds_profile(rule, subject):
        told = f"beyond the profile {subject['profile']}:"
        SubElement(case, "system-out").text = clean_text("\n\n".join([told, *causes]))
    elif rule["status"] == "violated":
        message = violations[0]["message"] if violations else "its largest error is beyond its bound"
        failure = SubElement(case, "failure", message=clean_text(message), type=rule["rule"])
        failure.text = clean_text("\n\n".join(causes))
    elif rule["cases"]:
        worst = "all unsupported, and refused as they must be"
        worst = worst if refuses_all(rule) else f"worst error {rule['worst']} of its bound"
        SubElement(case, "system-out").text = f"{rule['cases']} case{'s' * (rule['cases'] != 1)}, {worst}"
    return case
