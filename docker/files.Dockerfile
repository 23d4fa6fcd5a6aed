# What servers and tools read of the checkout where nobody can mount it: shipped models, templates, manifests.
#   docker build -f docker/files.Dockerfile -t labs-files:TAG .
FROM debian:bookworm-slim
COPY pyproject.toml /labs/checkout/
COPY labs /labs/checkout/labs
COPY model_repos /labs/checkout/model_repos
USER 65534:65534
