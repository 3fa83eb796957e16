"""What the stages that read text have in common."""

from collections.abc import Sequence
from typing import Any

from data_prep.corpus.files import FileRange
from data_prep.corpus.reader import CorpusOptions
from data_prep.jobs.workers import Stage


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
