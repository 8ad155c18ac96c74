package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// AllDefinitions is the ID of none: of what all have published.
const AllDefinitions = "*"

// malformed is returned by the functions that Snapshots and Events call for records that make no sense: the message is counted as
// one of Others, and the next one is read.
var malformed = errors.New("records that make no sense")

// Snapshots calls each with the last maps of each run of a definition: what is published while it reads may come, too, and a
// run's maps twice, of which those with the higher Seq count.
func (n *Network) Snapshots(ctx context.Context, def string, each func(Head, []byte) error) error {
	return n.read(ctx, mapsStream, mapsSubject(def, "*"), each)
}

// Events calls each with what runs of a definition have published, as far as it is kept, each message once.
func (n *Network) Events(ctx context.Context, def string, each func(Head, []byte) error) error {
	last := map[string]uint64{}
	return n.read(ctx, eventsStream, eventsSubject(def, "*"), func(h Head, records []byte) error {
		run := h.ID + "." + h.Run
		if h.Seq <= last[run] {
			return nil // it came again, so late that the server did not know it any more
		}
		last[run] = h.Seq
		return each(h, records)
	})
}

// quiet is how long nothing may come until it is asked whether there is anything.
const quiet = 2 * time.Second

// errStuck is for a server that sends nothing of what it has.
var errStuck = fmt.Errorf("nothing has come for %v", changeTime)

// read calls each with what a stream has at a subject.
func (n *Network) read(ctx context.Context, stream, subject string, each func(Head, []byte) error) error {
	fail := func(err error) error {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("read what the fleet has published: %w", keptNothing(err))
	}
	end := uint64(0) // what comes behind it is not waited for
	c, err := again(ctx, readTime, func(ctx context.Context) (jetstream.Consumer, error) {
		s, err := n.js.Stream(ctx, stream)
		if err != nil {
			return nil, err
		}
		end = s.CachedInfo().State.LastSeq
		return s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}, InactiveThreshold: time.Minute})
	})
	if err != nil {
		return fail(err)
	}
	if i := c.CachedInfo(); i == nil || i.NumPending == 0 {
		return nil
	}
	it, err := c.Messages()
	if err != nil {
		return fail(err)
	}
	defer it.Stop()
	for last := time.Now(); ; {
		wait, cancel := context.WithTimeout(ctx, quiet)
		m, err := it.Next(jetstream.NextContext(wait))
		cancel()
		switch {
		case err != nil && ctx.Err() != nil:
			return fail(err)
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
			// What was pending may have been taken out of the stream meanwhile.
			ask, cancel := context.WithTimeout(ctx, askTime)
			i, err := c.Info(ask)
			cancel()
			switch {
			case err == nil && i.NumPending == 0:
				return nil
			case time.Since(last) > changeTime:
				return fail(errors.Join(errStuck, err))
			}
			continue
		case err != nil:
			return fail(err)
		}
		last = time.Now()
		meta, err := m.Metadata()
		if err != nil {
			return fail(err)
		}
		h, records, err := unpack(m.Data())
		if h.Kept = meta.Timestamp; err == nil {
			if err = each(h, records); err != nil && !errors.Is(err, malformed) {
				return err
			}
		}
		if err != nil {
			n.other.Add(1)
			n.log.Debug("fleet: a message that makes no sense", "stream", stream, "err", err)
		}
		if meta.NumPending == 0 || meta.Sequence.Stream >= end {
			return nil
		}
	}
}
