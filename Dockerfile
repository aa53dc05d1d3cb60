# The operator's image; trial pods take the runner and the egress sidecar from it, too.
#
#   docker build -t multistep-operator .
#
# `make image` builds it without an image registry: PROGRAMS=prebuilt takes runner/bin/runner, egress/bin/egress and compose/bin/compose
# as they are, and python:3.13-slim-trixie is then an image that localkube has made of Debian's packages, as for agent-host/Dockerfile.
ARG GO_IMAGE=golang:1.26-trixie
ARG PYTHON_IMAGE=python:3.13-slim-trixie
ARG PROGRAMS=built

FROM ${GO_IMAGE} AS programs-built
ARG VERSION=dev
COPY runner/go.mod runner/*.go /src/runner/
COPY runner/internal /src/runner/internal
COPY egress/go.mod egress/go.sum egress/*.go /src/egress/
COPY egress/internal /src/egress/internal
COPY compose/go.mod compose/go.sum compose/*.go /src/compose/
RUN for program in runner egress compose; do \
      (cd /src/$program && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /programs/$program .) || exit 1; \
    done

FROM scratch AS programs-prebuilt
COPY runner/bin/runner egress/bin/egress compose/bin/compose /programs/

FROM programs-${PROGRAMS} AS programs

FROM ${PYTHON_IMAGE} AS packages
WORKDIR /src
RUN python3 -m venv --without-pip /opt/multistep
COPY requirements/operator.lock requirements/
# Compiled here, as the root filesystem is read-only later; by content, as copying may change times. Not the models of
# the Kubernetes client: they are 60 MB, and we never import them.
RUN pip --python /opt/multistep/bin/python install --quiet --no-cache-dir --no-compile --no-deps --only-binary :all: \
      --require-hashes --requirement requirements/operator.lock \
 && /opt/multistep/bin/python -m compileall -q --invalidation-mode unchecked-hash \
      -x '/kubernetes/(aio/)?client/(models|api)/' /opt/multistep/lib

FROM packages AS program
COPY hack/tools.lock hack/
RUN python3 -m venv /opt/tools \
 && /opt/tools/bin/pip install --quiet --no-cache-dir --only-binary :all: --require-hashes --requirement hack/tools.lock
COPY pyproject.toml README.md ./
COPY operator/multistep operator/multistep
RUN /opt/tools/bin/python -m hatchling build -t wheel -d /wheel \
 && pip --python /opt/multistep/bin/python install --quiet --no-cache-dir --no-compile --no-deps --prefix /program /wheel/*.whl \
 && /opt/multistep/bin/python -m compileall -q --invalidation-mode unchecked-hash /program/lib

FROM ${PYTHON_IMAGE}
COPY --from=programs /programs /multistep
COPY --from=packages /opt/multistep /opt/multistep
COPY --from=program /program /opt/multistep
# MALLOC_*: by default, glibc raises both limits to the largest buffer that was freed, and then keeps freed memory in its heap.
# LOGNAME: kopf asks for the user's name, and this user (like one that a cluster chooses) is not in /etc/passwd.
ENV PATH=/opt/multistep/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp LOGNAME=multistep \
    MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072
WORKDIR /tmp
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["python", "-m", "multistep"]
