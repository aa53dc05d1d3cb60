# Replaces the official image python:VERSION-slim-SUITE where no image registry is reachable. It contains Debian's Python. As in the
# official image, `python` runs it, and `pip install` works without a virtual environment.
ARG DEBIAN_IMAGE=localhost/debian:bookworm-slim
FROM ${DEBIAN_IMAGE}
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      ca-certificates python3 python3-pip python3-venv >/dev/null \
 && rm -rf /var/lib/apt/lists/* /usr/lib/python3.*/EXTERNALLY-MANAGED \
 && ln -s /usr/bin/python3 /usr/local/bin/python
CMD ["python3"]
