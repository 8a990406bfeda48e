// Sends a command to a Stele cluster through Kafka and reads its outcome, with stock Avro and Kafka clients.
//
//   javac -cp $CLASSPATH SendCommand.java
//   java -cp $CLASSPATH:. SendCommand BOOTSTRAP CLUSTER SCHEMAS NAME VALUE [REQUEST_ID]
//
// It sets a setting. With the id of an earlier run it asks again, and hears that run's outcome.

import java.io.File;
import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;
import org.apache.avro.message.BinaryMessageDecoder;
import org.apache.avro.message.BinaryMessageEncoder;
import org.apache.avro.message.MissingSchemaException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class SendCommand {
    static final Duration SEND_AGAIN_AFTER = Duration.ofSeconds(2);
    static final Duration GIVE_UP_AFTER = Duration.ofSeconds(30);

    public static void main(String[] args) throws Exception {
        if (args.length < 5 || args.length > 6) {
            System.err.println("SendCommand BOOTSTRAP CLUSTER SCHEMAS NAME VALUE [REQUEST_ID]");
            System.exit(2);
        }
        String bootstrap = args[0], cluster = args[1], name = args[3], value = args[4];
        String requestId = args.length > 5 ? args[5] : uuid7().toString();
        Schema commands = new Schema.Parser().parse(new File(args[2], "command.avsc"));
        Schema outcomes = new Schema.Parser().parse(new File(args[2], "outcome.avsc"));
        byte[] record = encoded(commands, envelope(commands, requestId, name, value));

        Map<String, Object> broker = Map.of("bootstrap.servers", bootstrap);
        try (var consumer =
                        new KafkaConsumer<>(broker, new StringDeserializer(), new ByteArrayDeserializer());
                var producer =
                        new KafkaProducer<>(broker, new StringSerializer(), new ByteArraySerializer())) {
            // First to the end of the outcomes: the answer comes behind it.
            var partition = new TopicPartition("stele." + cluster + ".outcomes", 0);
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            consumer.position(partition);

            GenericRecord outcome = null;
            long end = System.nanoTime() + GIVE_UP_AFTER.toNanos();
            while (outcome == null && System.nanoTime() < end) {
                // The same bytes again until it is answered: one id has one outcome.
                String topic = "stele." + cluster + ".commands";
                producer.send(new ProducerRecord<>(topic, requestId, record)).get();
                outcome = awaited(consumer, outcomes, requestId);
            }
            if (outcome == null) {
                System.out.println("unknown: ask again with " + requestId);
                System.exit(3);
            }
            boolean applied = (Boolean) outcome.get("applied");
            Object why = outcome.get("rejection");
            System.out.printf(
                    "%s %s epoch %s%s%n",
                    requestId,
                    applied ? "applied" : "refused",
                    outcome.get("epoch"),
                    why == null ? "" : ": " + ((GenericRecord) why).get("code"));
            System.exit(applied ? 0 : 1);
        }
    }

    static GenericRecord envelope(Schema schema, String requestId, String name, String value) {
        Schema union = schema.getField("command").schema();
        Schema command = union.getTypes().get(union.getIndexNamed("stele.set_setting"));
        return new GenericRecordBuilder(schema)
                .set("request_id", requestId)
                .set("actor", "java")
                .set("reason", "an example")
                .set("origin", "")
                .set("log_id", "")
                .set("command", new GenericRecordBuilder(command).set("name", name).set("value", value).build())
                .build();
    }

    static byte[] encoded(Schema schema, GenericRecord record) throws Exception {
        ByteBuffer bytes = new BinaryMessageEncoder<GenericRecord>(GenericData.get(), schema).encode(record);
        byte[] found = new byte[bytes.remaining()];
        bytes.get(found);
        return found;
    }

    /** The outcome with this id, if it comes soon. Records of schemas that are not known are of no use here. */
    static GenericRecord awaited(KafkaConsumer<String, byte[]> consumer, Schema schema, String requestId)
            throws Exception {
        var decoder = new BinaryMessageDecoder<GenericRecord>(GenericData.get(), schema);
        long end = System.nanoTime() + SEND_AGAIN_AFTER.toNanos();
        while (System.nanoTime() < end) {
            for (ConsumerRecord<String, byte[]> each : consumer.poll(Duration.ofMillis(100))) {
                if (requestId.equals(each.key())) {
                    try {
                        return decoder.decode(each.value());
                    } catch (MissingSchemaException e) {
                        throw new IllegalStateException("the service is newer: give its schemas", e);
                    }
                }
            }
        }
        return null;
    }

    /** Request ids are UUIDs of version 7: milliseconds since 1970, then chance. */
    static UUID uuid7() {
        var chance = new SecureRandom();
        long high = System.currentTimeMillis() << 16 | 0x7000L | chance.nextInt(0x1000);
        long low = chance.nextLong() & 0x3fff_ffff_ffff_ffffL | 0x8000_0000_0000_0000L;
        return new UUID(high, low);
    }
}
