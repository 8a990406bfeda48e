// A store with an agent in Go, which has nothing of Stele but its contract by wire: docs/reference/agent_protocol.md.
//
//	go build -o go_agent . && STELE_CLUSTER=... STELE_NODE_ID=... STELE_DATA_DIR=... ./go_agent --schemas ../../schemas
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type Settings struct {
	cluster, kafka, nodeID, dc, rack, folder, replaces string
	address                                            string
	numTokens                                          int64
	loadEvery                                          time.Duration
}

func (s Settings) topic(name string) string { return "stele." + s.cluster + "." + name }

// setting reads a STELE_* variable; without a default it must be there.
func setting(name string, byDefault ...string) string {
	found := os.Getenv("STELE_" + name)
	if found == "" && len(byDefault) == 0 {
		log.Fatalf("set STELE_%s", name)
	}
	if found == "" {
		found = byDefault[0]
	}
	return found
}

func settingsOfEnvironment() Settings {
	tokens, err := strconv.ParseInt(setting("NUM_TOKENS", "16"), 10, 32)
	seconds, unread := strconv.ParseFloat(setting("LOAD_INTERVAL_S", "60"), 64)
	if err != nil || unread != nil {
		log.Fatal("STELE_NUM_TOKENS and STELE_LOAD_INTERVAL_S are numbers")
	}
	return Settings{
		cluster: setting("CLUSTER"), kafka: setting("KAFKA_BOOTSTRAP", "127.0.0.1:9092"), nodeID: setting("NODE_ID"),
		dc: setting("DC", "dc1"), rack: setting("RACK", "r1"), folder: setting("DATA_DIR"),
		replaces: setting("REPLACE_NODE", ""), address: setting("ADDRESS", ""), numTokens: tokens,
		loadEvery: time.Duration(seconds * float64(time.Second)),
	}
}

func main() {
	folder := flag.String("schemas", "schemas", "the folder of Stele's Avro schemas")
	flag.Parse()
	settings := settingsOfEnvironment()
	schemas, err := loadSchemas(*folder)
	fatal(err)
	identity, err := openIdentity(settings.folder, settings.nodeID, settings.cluster)
	fatal(err)
	store, err := openStore(filepath.Join(settings.folder, "rows"))
	fatal(err)
	listener, err := net.Listen("tcp", setting("HTTP_HOST", "127.0.0.1")+":"+setting("HTTP_PORT", "0"))
	fatal(err)
	if settings.address == "" {
		settings.address = "http://" + listener.Addr().String()
	}
	kafka, err := kgo.NewClient(
		kgo.SeedBrokers(settings.kafka), kgo.ProducerLinger(0), kgo.RecordDeliveryTimeout(10*time.Second),
	)
	fatal(err)
	node := &Node{
		settings: settings, schemas: schemas, kafka: kafka, state: newState(), identity: identity, store: store,
		changed: make(chan struct{}), tell: make(chan struct{}, 1), requests: map[*Routed]bool{},
		sessions: map[string]int{}, sequence: identity.Heartbeats, works: map[Work]*Running{}, done: map[string]map[PieceKey]bool{},
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fatal(node.begin(ctx, listener))
	<-ctx.Done()
}

// begin starts all that runs until the process ends.
func (n *Node) begin(ctx context.Context, listener net.Listener) error {
	err := n.listen(ctx, "orders", func(order *Record) { n.onOrder(ctx, order) })
	if err != nil {
		return err
	}
	followed := &Log{
		bootstrap: n.settings.kafka, topic: n.settings.topic("epochs"), schemas: n.schemas,
		onEpoch: n.onEpoch, state: n.state, anchor: -1,
	}
	go func() {
		err := followed.follow(ctx, func(end int64) { n.looked(end, followed.next) })
		if ctx.Err() == nil {
			log.Fatal(err) // nothing that this node could say would be right
		}
	}()
	go n.acknowledge(ctx)
	go n.reportLoad(ctx)
	go func() {
		if err := n.admit(ctx); err != nil {
			log.Fatal("not admitted: ", err)
		}
	}()
	server := &http.Server{Handler: n.routes(), ReadHeaderTimeout: 10 * time.Second}
	go func() { log.Fatal(server.Serve(listener)) }()
	told, _ := json.Marshal(map[string]string{"http": n.settings.address})
	fmt.Println(string(told))
	return nil
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
