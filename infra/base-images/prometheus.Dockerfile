# Stands in for prom/prometheus:v2.42.0: the same version, by Debian.
FROM stele.local/debian:bookworm
RUN apt-get update \
 && apt-get install -y prometheus wget \
 && rm -rf /var/lib/apt/lists/* /etc/prometheus/* \
 && mkdir -p /prometheus && chown nobody:nogroup /prometheus
USER nobody
EXPOSE 9090
WORKDIR /prometheus
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
