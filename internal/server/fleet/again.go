package fleet

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// askTime is how long a server may take for one answer.
	askTime = 5 * time.Second
	// readTime is how long it is asked again for what is only read.
	readTime = 2 * askTime
	// changeTime is how long a change may take.
	changeTime = 30 * time.Second
	// restTime is between two questions, and up to as much more.
	restTime = 50 * time.Millisecond
)

// again asks until there is an answer, until it is one that another question would not change, or until the time is over. While servers
// elect who leads them nobody answers, and who asks then is never answered: a new question is.
func again[T any](ctx context.Context, within time.Duration, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		one, end := context.WithTimeout(ctx, askTime)
		v, err := ask(one)
		end()
		if err == nil || !passing(err) || sleep(ctx, restTime+rand.N(restTime)) != nil {
			return v, err
		}
	}
}

// away are the codes of errors of servers that have nobody who leads them just now (nats-server's errors.json).
var away = []jetstream.ErrorCode{
	10004, // incomplete results
	10008, // JetStream system temporarily unavailable
	10009, // not the leader
	10075, // peers are assigned anew
	10163, // expected last sequence temporarily unavailable
}

// passing reports whether an error may be gone when it is asked again.
func passing(err error) bool {
	var of *jetstream.APIError
	if errors.As(err, &of) {
		return slices.Contains(away, of.ErrorCode)
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrConnectionReconnecting)
}
