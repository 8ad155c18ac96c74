package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/pflag"
)

// Data that a fleet's servers keep, by its name there.
const (
	bucketName   = prefix             // definitions, as a KV bucket
	eventsStream = prefix + "-events" // the output of scripts
	mapsStream   = prefix + "-maps"   // the last maps of each daemon
)

// MaxBucket bounds the size of all definitions, in bytes.
const MaxBucket = 256 << 20

// IsNoRoom reports whether an error of Prepare means that the server's disk is
// too small.
func IsNoRoom(err error) bool {
	var of *jetstream.APIError
	return errors.As(err, &of) && (of.ErrorCode == 10047 || of.ErrorCode == 10028) // storage resources exceeded, of the server or the account
}

// Bounds are how much of a fleet's scripts' data is kept.
type Bounds struct {
	EventsAge   time.Duration // how long the output of scripts is kept
	EventsBytes int64         // the size of all scripts' output that is kept
	MapsAge     time.Duration // how long the last maps of each daemon are kept
	MapsBytes   int64
	Replicas    int // on how many servers of a cluster
}

// DefaultBounds are the bounds without flags.
func DefaultBounds() Bounds {
	return Bounds{EventsAge: 24 * time.Hour, EventsBytes: 1 << 30, MapsAge: 30 * 24 * time.Hour, MapsBytes: 1 << 30, Replicas: 1}
}

// Flags declares the flags, except the one for replicas.
func (b *Bounds) Flags(f *pflag.FlagSet) {
	f.DurationVar(&b.EventsAge, "events-age", b.EventsAge, "keep the output of the fleet's scripts for this `duration`")
	f.Int64Var(&b.EventsBytes, "events-bytes", b.EventsBytes, "keep at most the last `N` bytes of that output, of all scripts together")
	f.DurationVar(&b.MapsAge, "maps-age", b.MapsAge, "keep the last maps of a script in each daemon for this `duration`")
	f.Int64Var(&b.MapsBytes, "maps-bytes", b.MapsBytes, "keep at most the last `N` bytes of these maps, of all scripts together")
}

// Limits of bounds.
const (
	minAge      = time.Minute
	minBytes    = 1 << 20
	maxReplicas = 5
)

// Check rejects values that no server accepts.
func (b Bounds) Check() error {
	for flag, d := range map[string]time.Duration{"events-age": b.EventsAge, "maps-age": b.MapsAge} {
		if d < minAge {
			return fmt.Errorf("--%s %v: shorter than %v", flag, d, minAge)
		}
	}
	for flag, n := range map[string]int64{"events-bytes": b.EventsBytes, "maps-bytes": b.MapsBytes} {
		if n < minBytes || n > math.MaxInt64/4 {
			return fmt.Errorf("--%s %d: less than %d, or too many", flag, n, minBytes)
		}
	}
	if b.Replicas < 1 || b.Replicas > maxReplicas {
		return fmt.Errorf("--replicas %d: not 1 to %d", b.Replicas, maxReplicas)
	}
	return nil
}

// ErrKeepsNothing is returned when the fleet's servers have no storage for
// definitions, or none of them serves it at the moment.
var ErrKeepsNothing = errors.New("the fleet's servers keep nothing")

// duplicates is how long a server remembers the numbers of messages. It drops a
// message whose number it knows.
const duplicates = 2 * time.Minute

// Prepare creates the streams and buckets of the fleet, or applies these bounds
// to existing ones.
func Prepare(ctx context.Context, nc *nats.Conn, b Bounds) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("prepare the fleet: %w", err)
	}
	_, err = retry(ctx, changeTime, func(ctx context.Context) (jetstream.KeyValue, error) {
		return js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: bucketName, Description: "definitions of guestprobe's fleet", History: 1, MaxBytes: MaxBucket, Storage: jetstream.FileStorage, Replicas: b.Replicas,
		})
	})
	if err != nil {
		return fmt.Errorf("prepare the fleet: definitions: %w", err)
	}
	for _, c := range []jetstream.StreamConfig{
		{
			Name: eventsStream, Description: "what scripts of guestprobe's fleet print", Subjects: []string{eventsSubject("*", "*")},
			MaxAge: b.EventsAge, MaxBytes: b.EventsBytes, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage, Replicas: b.Replicas,
			Duplicates: min(duplicates, b.EventsAge), Compression: jetstream.S2Compression,
		},
		{
			Name: mapsStream, Description: "the last maps of scripts of guestprobe's fleet, by daemon", Subjects: []string{mapsSubject("*", "*")}, MaxMsgsPerSubject: 1,
			MaxAge: b.MapsAge, MaxBytes: b.MapsBytes, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage, Replicas: b.Replicas,
			Duplicates: min(duplicates, b.MapsAge),
		},
	} {
		if _, err := retry(ctx, changeTime, func(ctx context.Context) (jetstream.Stream, error) { return js.CreateOrUpdateStream(ctx, c) }); err != nil {
			return fmt.Errorf("prepare the fleet: %s: %w", c.Name, err)
		}
	}
	flush, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := nc.Publish(changedSubject, nil); err != nil {
		return fmt.Errorf("prepare the fleet: %w", err)
	}
	return nc.FlushWithContext(flush)
}

// Prepare calls the function Prepare with n's connection.
func (n *Network) Prepare(ctx context.Context, b Bounds) error { return Prepare(ctx, n.nc, b) }

// eventsSubject returns the subject of the output of a definition's run in a
// daemon.
func eventsSubject(def, daemon string) string { return prefix + ".events." + def + "." + daemon }

// mapsSubject returns the subject of its maps.
func mapsSubject(def, daemon string) string { return prefix + ".maps." + def + "." + daemon }

// keepsNothingError wraps errors of servers that keep nothing, or do not answer,
// in ErrKeepsNothing.
func keepsNothingError(err error) error {
	for _, e := range []error{jetstream.ErrBucketNotFound, jetstream.ErrStreamNotFound, jetstream.ErrNoStreamResponse, jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount, nats.ErrNoResponders} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", ErrKeepsNothing, err)
		}
	}
	return err
}

// openKept returns n's access to definitions.
func (n *Network) openKept(ctx context.Context) (jetstream.KeyValue, error) {
	n.mu.Lock()
	b := n.bucket
	n.mu.Unlock()
	if b != nil {
		return b, nil
	}
	b, err := n.js.KeyValue(ctx, bucketName)
	if err != nil {
		return nil, keepsNothingError(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bucket = b
	return b, nil
}
