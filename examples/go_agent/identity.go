package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Identity is who a data directory is, and what it has told; it is on the disk before anybody hears of it.
type Identity struct {
	NodeID        string `json:"node_id"`
	Cluster       string `json:"cluster"`
	HostID        string `json:"host_id"`
	JoinRequestID string `json:"join_request_id"`
	Boots         int64  `json:"boots"`
	ClusterID     string `json:"cluster_id"`
	LogID         string `json:"log_id"`
	WasMember     bool   `json:"was_member"`
	// The newest version and fence that were acknowledged, and at which epoch, or a later one that excluded a node
	// or created data.
	Version int64  `json:"version"`
	Fence   int64  `json:"fence"`
	Epoch   int64  `json:"epoch"`
	StateID string `json:"state_id"`
	// No ack has a greater sequence: by less than was told an older copy of the directory is known.
	Heartbeats int64 `json:"heartbeats"`

	folder string
}

// openIdentity reads or makes that of a directory, and locks it: two processes would acknowledge by turns.
func openIdentity(folder, nodeID, cluster string) (*Identity, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	if err := syncFolder(filepath.Dir(folder)); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("another process has %s", folder)
	}
	found := &Identity{NodeID: nodeID, Cluster: cluster, HostID: newUUID(4), JoinRequestID: newUUID(7), folder: folder}
	text, err := os.ReadFile(filepath.Join(folder, "identity.json"))
	_, missing := os.Stat(filepath.Join(folder, "rows"))
	switch {
	case errors.Is(err, os.ErrNotExist) && missing == nil:
		return nil, fmt.Errorf("%s has rows and no identity: restore it, or give an empty directory", folder)
	case errors.Is(err, os.ErrNotExist):
		// The first start: the rows' file comes first, so that an identity without one tells of a lost disk.
		if _, err := openStore(filepath.Join(folder, "rows")); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case missing != nil:
		return nil, fmt.Errorf("the rows of %s are missing: restore them, or start with an empty directory and another name", folder)
	default:
		if err := json.Unmarshal(text, found); err != nil {
			return nil, fmt.Errorf("%s/identity.json: %w", folder, err)
		}
	}
	if found.NodeID != nodeID || found.Cluster != cluster {
		return nil, fmt.Errorf("%s is of node %s of cluster %s", folder, found.NodeID, found.Cluster)
	}
	return found, found.save(func(i *Identity) { i.Boots++ })
}

// counted ends the boot ids of those whose sequence goes on over all starts; earlier releases of this agent counted anew at each.
const counted = "-c"

// isOlder tells an older copy of the directory from the newest one, by the newest ack of before this start.
func (i *Identity) isOlder(told *Record) bool {
	start, counts := strings.CutSuffix(told.Text("boot_id"), counted)
	return start >= i.start() || counts && told.Int("sequence") > i.Heartbeats
}

func (i *Identity) start() string { return fmt.Sprintf("%020d", i.Boots) }

// bootID sorts after those of the starts before.
func (i *Identity) bootID() string { return i.start() + counted }

// save changes it on the disk first, and then here.
func (i *Identity) save(change func(*Identity)) error {
	next := *i
	change(&next)
	text, err := json.Marshal(&next)
	if err != nil {
		return err
	}
	path := filepath.Join(i.folder, "identity.json")
	file, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = errors.Join(os.Rename(path+".new", path), syncFolder(i.folder))
	}
	if err == nil {
		*i = next
	}
	return err
}

// newUUID makes one of version 4, or of version 7, which begins with the time: request ids are such.
func newUUID(version byte) string {
	var id [16]byte
	rand.Read(id[:])
	if version == 7 {
		now := time.Now().UnixMilli()
		for at := range 6 {
			id[at] = byte(now >> (40 - 8*at))
		}
	}
	id[6], id[8] = id[6]&0x0f|version<<4, id[8]&0x3f|0x80
	text := hex.EncodeToString(id[:])
	return fmt.Sprintf("%s-%s-%s-%s-%s", text[:8], text[8:12], text[12:16], text[16:20], text[20:])
}
