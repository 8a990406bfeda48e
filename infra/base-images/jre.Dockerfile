# Stands in for eclipse-temurin:17-jre: a Java runtime under JAVA_HOME that can be copied away.
FROM stele.local/debian:bookworm
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && apt-get install -y openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* \
 && mkdir -p /opt/java \
 && find /usr/lib/jvm/ -xtype l -delete \
 && cp -rL /usr/lib/jvm/java-17-openjdk-* /opt/java/openjdk \
 && rm -rf /usr/lib/jvm
ENV JAVA_HOME=/opt/java/openjdk \
    PATH=/opt/java/openjdk/bin:$PATH
