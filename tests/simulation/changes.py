"""What a watch shows of a change."""

from simulation.api_server import Change, Json, Selector


def watch_event(change: Change, selector: Selector) -> tuple[str, Json] | None:
    """Return what a watch with a selector shows of a change: type and object, None if nothing.

    An object that leaves the selector arrives as DELETED, as it was before, with the version of the change.
    """
    was = change.old is not None and selector(change.old)
    if change.new is not None and selector(change.new):
        return ("MODIFIED" if was else "ADDED"), change.new
    if not was or change.old is None:
        return None
    return "DELETED", {**change.old, "metadata": {**change.old["metadata"], "resourceVersion": str(change.version)}}
