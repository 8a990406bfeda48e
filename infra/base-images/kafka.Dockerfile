# Stands in for apache/kafka:4.3.1: the broker's jars, configured by KAFKA_* and CLUSTER_ID.
FROM eclipse-temurin:17-jre
RUN useradd --uid 1000 --create-home appuser \
 && mkdir -p /opt/kafka/config /opt/kafka/libs /var/lib/kafka/data \
 && chown -R appuser /opt/kafka/config /var/lib/kafka
COPY .cache/jars/kafka/ /opt/kafka/libs/
COPY infra/base-images/kafka-run /etc/kafka/docker/run
COPY infra/base-images/log4j2.properties /etc/kafka/docker/
USER appuser
EXPOSE 9092
CMD ["/etc/kafka/docker/run"]
