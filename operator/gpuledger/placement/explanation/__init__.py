"""Why a request does not fit on a node: card by card, with what is missing, and what would make it fit.

The refusal is the one that placement gives, so both say the same. Everything else here is only looked for when a user
asks: the texts of refusals have no live numbers, and these are all about them.
"""
