# Stands in for the official python:3.11-slim-bookworm where no image registry is reachable: Debian's own Python 3.11,
# which, like the official one, answers to `python` and lets `pip install` work without a virtual environment.
FROM localhost/debian:bookworm-slim
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      ca-certificates python3 python3-pip python3-venv >/dev/null \
 && rm -rf /var/lib/apt/lists/* /usr/lib/python3.11/EXTERNALLY-MANAGED \
 && ln -s /usr/bin/python3 /usr/local/bin/python
CMD ["python3"]
