"""Parts that are not of Plumbline: what a user's own package looks like.

The tests put the folder above this one on ``sys.path`` (the fixture ``outside``) and name the parts
by reference, such as ``"outside_parts.rules:Soft"``.
"""
