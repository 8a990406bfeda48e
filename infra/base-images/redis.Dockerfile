# Stands in for redis:7.0-bookworm: redis-server as the user redis, `redis-cli` for health checks.
FROM stele.local/debian:bookworm
RUN apt-get update \
 && apt-get install -y redis-server \
 && rm -rf /var/lib/apt/lists/* \
 && mkdir -p /data && chown redis:redis /data
USER redis
WORKDIR /data
EXPOSE 6379
CMD ["redis-server", "--protected-mode", "no"]
