"""As a release's own launcher does it: one server per rank under mpirun, in the background; then it ends."""

import subprocess
import sys

ranks = next(word.partition("=")[2] for word in sys.argv if word.startswith("--world_size="))
subprocess.Popen(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, "tritonserver", "--stay"])
