"""A log to which a test writes rows and arrays one at a time."""

import json

from embodied_env.record.arrays import encode_array, portable, refer_to
from embodied_env.record.row_log import LogWriter


class RowLog(LogWriter):
    """A `LogWriter` that encodes each row, and flushes it unless a chunk has several rows."""

    rows_per_chunk = 1

    def write(self, topic, row, *, log_time_ns):
        data = json.dumps(row, allow_nan=False, separators=(",", ":")).encode()
        self.append(topic, data, number=row["row"], log_time_ns=log_time_ns)
        if row["row"] % self.rows_per_chunk == 0:
            self.flush()

    def store(self, array, *, log_time_ns):
        """Append the bytes of `array`, and return the reference for a later row."""
        stored = portable(array)
        reference = refer_to(stored)
        self.put(reference, encode_array(stored), log_time_ns=log_time_ns)
        return reference
