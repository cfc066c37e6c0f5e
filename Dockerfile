# One image for learner and actors: docs/service.md.
#   docker build -t seed .
#   docker build -t seed --build-arg EXTRAS=football,mujoco .
FROM python:3.11-slim AS build
ARG EXTRAS=""
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY benchmarks/suites benchmarks/suites
COPY presets presets
COPY seedcli seedcli
RUN python -m venv /opt/seed \
    && /opt/seed/bin/pip install --no-cache-dir --disable-pip-version-check ".${EXTRAS:+[$EXTRAS]}"

FROM python:3.11-slim
COPY --from=build /opt/seed /opt/seed
# A number beside the name: Kubernetes can tell that it is not root.
RUN useradd --uid 10001 --create-home seed && install --directory --owner=seed --group=seed /runs
ENV PATH=/opt/seed/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SEED_NET__METRICS_PORT=8688 \
    SEED_NET__METRICS_HOST=0.0.0.0
USER 10001:10001
WORKDIR /runs
VOLUME /runs
EXPOSE 8686 8687 8688
STOPSIGNAL SIGTERM
# A learner answers for itself; an actor has nothing to ask, and leaves by itself where something is wrong.
HEALTHCHECK --start-period=120s --interval=15s --timeout=5s --retries=4 CMD ["python", "-c", "import os, urllib.request; b'\\0learner\\0' in open('/proc/1/cmdline', 'rb').read() and urllib.request.urlopen('http://127.0.0.1:' + os.environ['SEED_NET__METRICS_PORT'] + '/healthz', timeout=4)"]
ENTRYPOINT ["seed"]
CMD ["--help"]
