package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Following the log: which records win, what they make true, and whether it is still the log that was read.

const (
	frozenBytes = 90
	lookEvery   = time.Second
	lookLimit   = 3 * time.Second
	lookIsOld   = 5 * time.Second // after which nothing is served or acknowledged
)

// Log follows the topic of epochs. onEpoch is called for each winner, with its decoded record.
type Log struct {
	bootstrap, topic string
	schemas          *Schemas
	onEpoch          func(*Record) error

	state  *State // of whoever onEpoch belongs to; read here, in the same goroutine
	anchor int64  // the offset of the last winner; -1: none
	bytes  []byte // its record
	next   int64
}

// follow reads until something is wrong for good, and returns that.
func (l *Log) follow(ctx context.Context, looked func(end int64)) error {
	client, err := l.client(l.next)
	if err != nil {
		return err
	}
	defer func() { client.Close() }()
	lookedAt := time.Time{}
	for ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, lookEvery/4)
		fetches := client.PollFetches(wait)
		cancel()
		for _, failed := range fetches.Errors() {
			if isGone(failed.Err) {
				return fmt.Errorf("the log cannot be read on at offset %d: %w", l.next, failed.Err)
			}
		}
		for _, record := range fetches.Records() {
			if err := l.offer(record); err != nil {
				return err
			}
		}
		if time.Since(lookedAt) > lookEvery {
			end, err := l.look(ctx)
			if err != nil {
				return err
			}
			lookedAt = time.Now()
			if end >= 0 {
				looked(end)
			} else {
				log.Printf("the log could not be looked at within %s; nothing is served %s after the last look", lookLimit, lookIsOld)
			}
		}
	}
	return ctx.Err()
}

func (l *Log) client(offset int64) (*kgo.Client, error) {
	from := map[string]map[int32]kgo.Offset{l.topic: {0: kgo.NewOffset().At(offset)}}
	return kgo.NewClient(
		kgo.SeedBrokers(l.bootstrap), kgo.ConsumePartitions(from), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.FetchIsolationLevel(kgo.ReadUncommitted()),
	)
}

// offer judges a record by its first bytes; only a winner is decoded.
func (l *Log) offer(record *kgo.Record) error {
	value, state := record.Value, l.state
	if record.Offset != l.next {
		return fmt.Errorf("offset %d follows %d: records are missing", record.Offset, l.next-1)
	}
	if len(value) < frozenBytes || value[0] != 0xc3 || value[1] != 0x01 {
		return fmt.Errorf("there is no record of the log at offset %d", record.Offset)
	}
	l.next++
	previous, logID, witnessID := string(value[10:26]), string(value[42:58]), string(value[58:74])
	epoch := int64(binary.BigEndian.Uint64(value[74:82]))
	witness := int64(binary.BigEndian.Uint64(value[82:90]))
	switch {
	case state.epoch == 0 && epoch > 1:
		return fmt.Errorf("the log begins with epoch %d: this agent cannot begin with a snapshot", epoch)
	case state.epoch > 0 && logID != state.logID:
		return l.foreign(value)
	case witness > state.epoch || state.epoch > 0 && state.stateIDs[witness] != witnessID:
		return fmt.Errorf("its writer had read epoch %d, which is not in this history", witness)
	case previous != state.stateID:
		return nil // a loser
	case epoch != state.epoch+1:
		return fmt.Errorf("epoch %d follows %d", epoch, state.epoch)
	}
	decoded, err := l.schemas.Decode(value)
	if err == nil {
		err = l.onEpoch(decoded)
	}
	if err != nil {
		return fmt.Errorf("at offset %d: %w", record.Offset, err)
	}
	l.anchor, l.bytes = record.Offset, value
	return nil
}

// foreign passes over a stray; but what this log was recovered as ends it.
func (l *Log) foreign(value []byte) error {
	decoded, err := l.schemas.Decode(value)
	if err != nil {
		return fmt.Errorf("a record of another log: %w", err)
	}
	for _, each := range decoded.List("facts") {
		if fact := each.(*Record); fact.Name == "LogRecovered" && fact.Text("from_log_id") == hexOf(l.state.logID) {
			return fmt.Errorf("the log was recovered as %s behind epoch %d", fact.Text("log_id"), fact.Int("last_epoch"))
		}
	}
	return nil
}

// look says where the log ends, if its last winner is still where it was read; -1: nobody answers now.
func (l *Log) look(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	client, err := l.client(max(l.anchor, 0))
	if err != nil {
		return -1, err
	}
	defer client.Close()
	end := endOf(ctx, client, l.topic)
	if end < 0 || l.anchor < 0 {
		return end, nil
	}
	if end <= l.anchor {
		return -1, fmt.Errorf("the log ends at offset %d, and its epoch %d was at %d", end, l.state.epoch, l.anchor)
	}
	fetches := client.PollRecords(ctx, 1)
	records := fetches.Records()
	switch {
	case len(records) > 0 && records[0].Offset == l.anchor && bytes.Equal(records[0].Value, l.bytes):
		return end, nil
	case len(records) > 0:
		return -1, fmt.Errorf("at offset %d there is another record than epoch %d", l.anchor, l.state.epoch)
	case isGone(fetches.Err()):
		return -1, fmt.Errorf("epoch %d is gone from the log: %w", l.state.epoch, fetches.Err())
	}
	return -1, nil
}

// isGone tells what never comes back from brokers that do not answer now, after which nothing is served until they do.
func isGone(err error) bool {
	var loss *kgo.ErrDataLoss
	return errors.Is(err, kerr.OffsetOutOfRange) || errors.As(err, &loss)
}

const (
	theEnd   = -1
	theBegin = -2
)

func endOf(ctx context.Context, client *kgo.Client, topic string) int64 {
	return offsetOf(ctx, client, topic, 0, theEnd)
}

// offsetOf asks where a partition begins or ends; -1: nobody answers now.
func offsetOf(ctx context.Context, client *kgo.Client, topic string, number int32, which int64) int64 {
	ask := kmsg.NewPtrListOffsetsRequest()
	ask.ReplicaID = -1
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Partition, partition.Timestamp = number, which
	of := kmsg.NewListOffsetsRequestTopic()
	of.Topic, of.Partitions = topic, append(of.Partitions, partition)
	ask.Topics = append(ask.Topics, of)
	answer, err := ask.RequestWith(ctx, client)
	if err != nil || len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return -1
	}
	if found := answer.Topics[0].Partitions[0]; found.ErrorCode == 0 {
		return found.Offset
	}
	return -1
}
