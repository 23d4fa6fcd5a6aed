# Prometheus and promtool as Debian packages them, for machines that reach no registry: LABS_PROMETHEUS_IMAGE names it.
#   docker build -f docker/prometheus.Dockerfile -t labs-prometheus .
FROM debian:bookworm-slim
RUN rm -f /etc/apt/apt.conf.d/docker-clean \
    && printf 'path-exclude=/usr/share/%s/*\n' doc man locale info >/etc/dpkg/dpkg.cfg.d/slim
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends prometheus
USER 65534:65534
ENTRYPOINT ["prometheus"]
