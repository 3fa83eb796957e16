"""What the stages that read text have in common."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from data_prep.corpus.bad_lines import BadLine, BadLineFile, BadLines, RejectedLines, read_bad_lines
from data_prep.corpus.files import FileRange
from data_prep.corpus.reader import CorpusOptions, CorpusReader
from data_prep.jobs.workers import Stage

_BAD_LINES_SUFFIX = ".bad_lines"


class CorpusStage(Stage):
    """A stage whose jobs read the splits of a corpus.

    It is pickled without the splits, which may be of very many files: a worker process is given that of each job.

    Attributes:
      splits: for each job, the pieces of files that it reads.
      corpus: how files become sentences.
    """

    splits: Sequence[Sequence[FileRange]]
    corpus: CorpusOptions

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the splits."""
        return {**self.__dict__, "names": self.names, "splits": {}}

    def given(self, job: int) -> Sequence[FileRange]:
        """Returns the split of a job."""
        return self.splits[job]

    def accept(self, job: int, given: Sequence[FileRange]) -> None:
        """Takes the split of a job, the only one that is kept."""
        self.splits.clear()
        self.splits[job] = given

    @contextlib.contextmanager
    def reader(self, job: int) -> Iterator[CorpusReader]:
        """Gives the reader for a job; what it left out or cleaned is kept until `write_rejected`.

        The `lines` of the reader belong to the job's result.
        """
        with BadLineFile(self.path(job, _BAD_LINES_SUFFIX)) as found:
            yield CorpusReader(self.corpus, BadLines(self.corpus.on_bad_line, found.add))

    def write_rejected(
        self, path: str, results: Sequence[Mapping[str, Any]], removed: Callable[[int], str] | None = None
    ) -> list[str]:
        """Writes the file of `RejectedLines`, and returns its messages.

        Args:
          path: the file.
          results: the results of all jobs.
          removed: returns for a job the `BadLineFile` of the documents that were removed.
        """

        def found(job: int) -> Iterator[BadLine]:
            yield from read_bad_lines(self.path(job, _BAD_LINES_SUFFIX))
            if removed is not None:
                yield from read_bad_lines(removed(job))

        return RejectedLines(path).write(
            (pieces, result["lines"], found(job))
            for job, (pieces, result) in enumerate(zip(self.splits, results, strict=True))
        )
