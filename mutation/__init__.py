"""Mutation testing of the definition: is every small wrong edit of `reference_numpy` caught?"""
