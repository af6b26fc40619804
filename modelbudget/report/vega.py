"""The script that draws charts in the page."""

import vl_convert


def vega() -> str:
    """Return Vega with vega-embed as one script."""
    # The stub requires a snippet, which the function does not.
    return vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
