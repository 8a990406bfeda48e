package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What this node told last is in the topic of acks, which keeps the newest of each node. A directory that is behind
// that is an older copy, and lacks what was acknowledged since.

const toldLimit = time.Minute

// isNewest tries again for as long as nobody answers; an error says why the directory may not be used.
func (n *Node) isNewest(ctx context.Context) error {
	if n.identity.Boots == 1 {
		return nil // it was made just now
	}
	for ctx.Err() == nil {
		told, err := n.lastTold(ctx)
		switch {
		case err != nil:
			log.Print("nothing is served before the newest acknowledgement is known: ", err)
			n.until(ctx, time.Second, func() bool { return false })
		case told != nil && n.identity.isOlder(told):
			// A start that is refused is none: else a copy would be as new as the newest once it was started often enough.
			uncounted := n.identity.save(func(i *Identity) { i.Boots-- })
			text := "%s is an older copy: it has counted %d heartbeats, and %d were told, the last one by start %s:" +
				" put the newest back, or replace the node"
			refused := fmt.Errorf(text, n.settings.folder, n.identity.Heartbeats, told.Int("sequence"), told.Text("boot_id"))
			return errors.Join(refused, uncounted)
		default:
			return nil
		}
	}
	return nil
}

// lastTold reads the topic from its beginning; nil: nobody has heard of this directory.
func (n *Node) lastTold(ctx context.Context) (*Record, error) {
	ctx, cancel := context.WithTimeout(ctx, toldLimit)
	defer cancel()
	topic := n.settings.topic("acks")
	left, from, err := n.endsOf(ctx, topic)
	if err != nil || len(left) == 0 {
		return nil, err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(n.settings.kafka), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var newest *Record
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s was not read within %s", topic, toldLimit)
		}
		for _, record := range fetches.Records() {
			if end, wanted := left[record.Partition]; wanted && record.Offset+1 >= end {
				delete(left, record.Partition)
			}
			if string(record.Key) != n.settings.nodeID {
				continue
			}
			ack, err := n.schemas.Decode(record.Value)
			if err == nil && ack.Text("host_id") == n.identity.HostID {
				newest = ack
			}
		}
	}
	return newest, nil
}

// endsOf gives the end of each partition that has anything, and where it begins.
func (n *Node) endsOf(ctx context.Context, topic string) (map[int32]int64, map[int32]kgo.Offset, error) {
	ask, of := kmsg.NewPtrMetadataRequest(), kmsg.NewMetadataRequestTopic()
	of.Topic = &topic
	ask.Topics = append(ask.Topics, of)
	answer, err := ask.RequestWith(ctx, n.kafka)
	if err != nil {
		return nil, nil, err
	}
	if len(answer.Topics) != 1 || answer.Topics[0].ErrorCode != 0 {
		return nil, nil, fmt.Errorf("the brokers know no topic %s", topic)
	}
	ends, from := map[int32]int64{}, map[int32]kgo.Offset{}
	for _, each := range answer.Topics[0].Partitions {
		begin := offsetOf(ctx, n.kafka, topic, each.Partition, theBegin)
		end := offsetOf(ctx, n.kafka, topic, each.Partition, theEnd)
		if begin < 0 || end < 0 {
			return nil, nil, fmt.Errorf("nobody tells where partition %d of %s ends", each.Partition, topic)
		}
		if begin < end {
			ends[each.Partition], from[each.Partition] = end, kgo.NewOffset().At(begin)
		}
	}
	return ends, from, nil
}
