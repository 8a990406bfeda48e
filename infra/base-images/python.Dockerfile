# Stands in for python:3.11-slim-bookworm: `python` and `pip` on the path, `python -m venv`.
FROM stele.local/debian:bookworm
RUN apt-get update \
 && apt-get install -y python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && ln -s /usr/bin/python3 /usr/local/bin/python
CMD ["python"]
