"""What stands before Triton where strangers can reach it: Envoy, and a judge of what every request asks for.

One request can end Triton 2.51 (docs/operate/security.md). Envoy bounds sizes, times and decompression; what a
request means only a parser can tell, so Envoy shows each one to the judge (its external-processing protocol) before
a byte of it reaches Triton.
"""

HTTP, GRPC, METRICS = 8000, 8001, 8002  # the ports of a container: of Triton's, and of Envoy's
PROCESS_NAME = "labs-judge"  # by which a runtime finds the judge among the processes of a machine
