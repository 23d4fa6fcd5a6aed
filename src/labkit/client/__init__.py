"""Whatever talks to a running server: ask it, load it, count what it did."""

import os

# A process that is started while a stream is open is a fork that only calls exec. gRPC's handlers for forks may end it
# in between. They are read when the first channel opens.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
