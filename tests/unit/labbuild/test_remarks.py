"""What an exporter's libraries say about themselves does not reach a person's progress line."""

import logging

from labbuild import exports


def test_a_library_is_silent_while_it_exports_although_it_ends_the_silence_itself() -> None:
    library, heard = logging.getLogger("transformers.anything"), list[str]()

    def hear(record: logging.LogRecord) -> bool:
        heard.append(record.getMessage())
        return False

    library.addFilter(hear)
    before = logging.getLogger("transformers").level
    with exports._without_remarks():
        logging.disable(logging.NOTSET)  # as optimum does
        library.warning("an argument is deprecated")
        library.error("the export failed")
    library.removeFilter(hear)
    assert heard == ["the export failed"]
    assert logging.getLogger("transformers").level == before
