package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// tracefs returns the folder that holds uprobe_events, or why it is missing.
func tracefs() (string, error) {
	for _, dir := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		f, err := os.OpenFile(filepath.Join(dir, "uprobe_events"), os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			f.Close()
			return dir, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			return "", fmt.Errorf("%s/uprobe_events: permission denied; run as root", dir)
		}
	}
	return "", errors.New("no uprobe_events: this kernel has no CONFIG_UPROBE_EVENTS, or tracefs is not mounted (mount -t tracefs tracefs /sys/kernel/tracing)")
}

// uprobePeer times a Linux uprobe that records two arguments, on a native
// program that executes the bytes fn.
func uprobePeer(ctx context.Context, fn []byte, runs int, calls uint32) Peer {
	p := Peer{Name: "uprobe", What: "Linux uprobe (uprobe_events, one pair of fetch arguments) on the same function's bytes in a native process"}
	if err := uprobe(ctx, &p, fn, runs, calls); err != nil {
		p.Unavailable = err.Error()
	}
	return p
}

func uprobe(ctx context.Context, p *Peer, fn []byte, runs int, calls uint32) (err error) {
	trace, err := tracefs()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "guestprobe-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := nativeLoop(dir, "loop", fn, calls)
	if err != nil {
		return err
	}
	empty, err := nativeLoop(dir, "empty", fn, 1)
	if err != nil {
		return err
	}
	// Without a probe a call takes about a nanosecond, so make many more of them.
	// Otherwise the time of starting a process would hide it.
	plain, err := nativeLoop(dir, "plain", fn, calls*plainFactor)
	if err != nil {
		return err
	}
	group := fmt.Sprintf("guestprobe_bench_%d", os.Getpid())
	events := filepath.Join(trace, "uprobe_events")
	if err := appendLine(events, fmt.Sprintf("p:%s/hot %s:0x%x a=%%di b=%%si", group, path, nativeFunc)); err != nil {
		return fmt.Errorf("define the uprobe: %w", err)
	}
	enable := filepath.Join(trace, "events", group, "enable")
	defer func() {
		err = errors.Join(err, appendLine(enable, "0"), appendLine(events, "-:"+group+"/hot"))
	}()

	var base, with []float64
	for range runs {
		b, err := timeCommand(ctx, plain, empty)
		if err != nil {
			return err
		}
		if err := appendLine(enable, "1"); err != nil {
			return fmt.Errorf("enable the uprobe: %w", err)
		}
		w, err := timeCommand(ctx, path, empty)
		if err != nil {
			return err
		}
		if err := appendLine(enable, "0"); err != nil {
			return fmt.Errorf("disable the uprobe: %w", err)
		}
		base = append(base, nsPer(b, uint64(calls)*plainFactor))
		with = append(with, nsPer(w, uint64(calls))-base[len(base)-1])
	}
	hits, err := uprobeHits(trace, path)
	if err != nil {
		return err
	}
	if want := uint64(runs) * uint64(calls); hits != want {
		return fmt.Errorf("the kernel counted %d uprobe hits, want %d", hits, want)
	}
	s := spread(with)
	p.NsPerHit, p.BaselineNs, p.Hits = &s, spread(base).Median, hits
	return nil
}

// timeCommand returns how much longer path takes than empty, its one-call twin:
// the cost of starting a process cancels out.
func timeCommand(ctx context.Context, path, empty string) (time.Duration, error) {
	var took [2]time.Duration
	for i, p := range []string{empty, path} {
		start := time.Now()
		if out, err := exec.CommandContext(ctx, p).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("run the native loop: %w: %s", err, out)
		}
		took[i] = time.Since(start)
	}
	return max(took[1]-took[0], 0), nil
}

// uprobeHits reads the kernel's own count for the probe on path.
func uprobeHits(trace, path string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(trace, "uprobe_profile"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var file, event string
		var hits uint64
		if n, _ := fmt.Sscan(line, &file, &event, &hits); n == 3 && file == path {
			return hits, nil
		}
	}
	return 0, fmt.Errorf("no line for %s in uprobe_profile", path)
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}
