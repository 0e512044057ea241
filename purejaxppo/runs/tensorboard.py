"""TensorBoard event files, written in the calling thread.

tensorboardX writes in a background thread. At the first error, such as a full disk, this thread
ends, its queue fills up, and `add_scalar` blocks forever. Here, the call raises the error.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter, directory_check
from tensorboardX.summary import hparams
from tensorboardX.writer import FileWriter

FLUSH_SECONDS = 10.0
"""Seconds between two flushes."""


class EventFile:
    """An event file: tensorboardX's `EventFileWriter` without its queue and thread."""

    def __init__(self, folder: str) -> None:
        """Open a new file in a folder, which is created if needed."""
        directory_check(folder)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
        self._folder = folder
        self._file = RecordWriter(os.path.join(folder, name))
        self._flushed = 0.0
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def get_logdir(self) -> str:
        """Return the folder."""
        return self._folder

    def add_event(self, event: Event) -> None:
        """Write an event."""
        self._file.write(event.SerializeToString())
        if time.monotonic() > self._flushed + FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all events to disk."""
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


class EventFiles(FileWriter):
    """Writer of an event file that gives each event a step and a time."""

    def __init__(self, folder: str, purge_step: int | None) -> None:
        """Open the file. TensorBoard ignores earlier files of the folder from `purge_step` on."""
        self.event_writer = EventFile(folder)
        self._default_metadata: dict[str, Any] = {}
        started = SessionLog(status=SessionLog.START)
        for event in ({"file_version": "brain.Event:2"}, {"session_log": started}):
            self.add_event(Event(step=purge_step, **event))


class Writer(SummaryWriter):
    """A `SummaryWriter` that raises an OSError if the disk is full."""

    all_writers: Any  # the `EventFiles` by folder; None while closed

    def _get_file_writer(self) -> FileWriter:
        """Return the writer of the folder, opened at the first call."""
        if self.all_writers is None:
            self.file_writer = EventFiles(self.logdir, self.purge_step)
            self.all_writers = {self.logdir: self.file_writer}
        return self.file_writer

    def add_hyperparameters(self, values: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Write the hyperparameters of this run, and the names of metrics to compare them by.

        `add_hparams` would write them as another run.
        """
        for summary in hparams(values, dict.fromkeys(metrics)):
            self._get_file_writer().add_summary(summary)

    def add_gif(self, tag: str, gif: bytes, step: int) -> None:
        """Write an animated gif. `add_video` would require moviepy."""
        width, height = struct.unpack("<HH", gif[6:10])
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif)
        summary = Summary(value=[Summary.Value(tag=tag, image=image)])
        self._get_file_writer().add_summary(summary, step)

    def add_scalars(self, main_tag: str, tag_scalar_dict: Any, *args: Any, **kwargs: Any) -> None:
        """Write the value of each tag to a separate event file."""
        self._get_file_writer()
        for tag in tag_scalar_dict:
            folder = os.path.join(self.logdir, main_tag, tag)
            if folder not in self.all_writers:
                self.all_writers[folder] = EventFiles(folder, self.purge_step)
        super().add_scalars(main_tag, tag_scalar_dict, *args, **kwargs)

    def close(self) -> None:
        """Close all files, even if some of them cannot be written."""
        with contextlib.ExitStack() as closing:
            for files in (self.all_writers or {}).values():
                closing.callback(files.close)
            self.all_writers = None
