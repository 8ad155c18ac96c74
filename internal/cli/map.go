package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (a *app) maps() command.Spec {
	return command.Spec{Use: "map", Short: "Look into the maps of attached programs", Sub: []command.Spec{a.mapList(), a.mapDump()}}
}

func (a *app) mapList() command.Spec {
	return command.Spec{
		Use:   "list",
		Short: "List the maps of attached programs",
		Long: `List the maps of attached programs: number, name, kind, bytes of a key and of a
value, entries (of a ring its bytes), bytes of memory, where that memory is (guest:
programs in the guest see it, too) and the probes whose programs refer to it.`,
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			ms, err := c.Maps(ctx)
			if err != nil {
				return err
			}
			return r.Show(api.MapList{Maps: ms}, func() error { return printMaps(r, ms) })
		}),
	}
}

func printMaps(r *command.Run, ms []api.MapInfo) error {
	var rows [][]string
	for _, m := range ms {
		where := "host"
		if m.Shared {
			where = "guest"
		}
		rows = append(rows, []string{
			u64(m.ID), m.Name, m.Kind, strconv.Itoa(m.KeySize), strconv.Itoa(m.ValueSize), strconv.Itoa(m.Entries), strconv.Itoa(m.Bytes), where, strings.Join(m.Probes, ","),
		})
	}
	return r.Table([]string{"ID", "NAME", "KIND", "KEY", "VALUE", "ENTRIES", "BYTES", "MEMORY", "PROBES"}, rows)
}

func (a *app) mapDump() command.Spec {
	var values, raw bool
	var as string
	var heat heatFlags
	return command.Spec{
		Use:   "dump MAP",
		Short: "Print the contents of a map",
		Long: `Print the contents of a map, given by number or name. If the object has types for keys and
values (clang -g), print structures with their fields, texts, and signed numbers. Without types,
or with --raw, keys and values of 1, 2, 4 or 8 bytes are numbers, and others bytes in hexadecimal. A per-CPU
map has a column for each vCPU, and the sum where the values are numbers. A map of 64 counters of 8 bytes
is printed as a log2 histogram, summed over the vCPUs; --values prints its numbers. A map of
stack traces shows the stacks, a frame per line: where the hit was, and then where each
call returns to. For a ring only counts are shown: its records go to 'guestprobe trace'.

--as hist prints log2 histograms that a program keeps itself, as many of libbpf's tools do: an array
of at most 64 counters, or for each key a value that is an array of counters or a structure with one.

` + chartHelp,
		Example: `  guestprobe map dump by_arg
  guestprobe map dump nanoseconds --format json
  guestprobe map dump nanoseconds --as hist`,
		Args:    command.ArgsBetween(1, 1, "say which map: a number or a name of 'guestprobe map list'"),
		Formats: []string{formatSVG},
		Flags: func(f *pflag.FlagSet) {
			heat.declare(f)
			f.BoolVar(&values, "values", false, "print the numbers of a histogram")
			f.BoolVar(&raw, "raw", false, "print bytes, and ignore types")
			f.StringVar(&as, "as", "", "print arrays of counters as this `FORM`: "+asHist)
		},
		Complete: a.completeMaps(),
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			if err := heat.check(r); err != nil {
				return err
			}
			if as != "" && (as != asHist || heat.heat || values || raw) {
				return command.Usagef("--as takes %s, and goes neither with --heat nor with --values and --raw", asHist)
			}
			d, err := c.Map(ctx, r.Args[0])
			if err != nil {
				return err
			}
			if as != "" {
				hists, err := newMapHists(d)
				if err != nil {
					return err
				}
				return r.Show(hists, func() error { return hists.print(r) })
			}
			if (heat.heat || r.Format == formatSVG) && !d.Hist {
				return command.Usagef("map %s is no histogram of 64 counters of 8 bytes; --as %s draws others", d.Name, asHist)
			}
			if heat.heat {
				return heat.poll(ctx, r, d.Name, func(ctx context.Context) (map[string][]chart.Bucket, bool, error) {
					d, err := c.Map(ctx, r.Args[0])
					return map[string][]chart.Bucket{d.Name: dumpBuckets(d.Buckets)}, true, err
				})
			}
			return r.Show(d, func() error { return printDump(r, d, values, raw) })
		}),
	}
}

// printDump prints the content of a map.
func printDump(r *command.Run, d api.MapDump, values, raw bool) error {
	switch {
	case r.Format == formatSVG:
		return chart.Picture(r.Stdout, d.Name, []chart.Drawing{chart.Hist{Title: d.Name, Buckets: dumpBuckets(d.Buckets)}})
	case d.Ring != nil:
		n := d.Ring
		return r.Table([]string{"READ", "LOST", "DISCARDED", "CORRUPTED", "PENDING-BYTES"},
			[][]string{{u64(n.Read), u64(n.Lost), u64(n.Discarded), u64(n.Corrupted), u64(n.Pending)}})
	case d.Hist && !values:
		return printHist(r, d.Buckets)
	}
	if raw {
		for i := range d.Values {
			d.Values[i].KeyData, d.Values[i].Data, d.Values[i].Stack = nil, nil, nil
		}
	}
	if err := printEntries(r, d); err != nil {
		return err
	}
	if d.Truncated {
		r.Note("The map has more entries than these %d.", len(d.Values))
	}
	if d.Lost > 0 {
		r.Note("The map was full %s: tasks have no value. --map-entries %s=N of 'guestprobe attach' makes it larger than %d.", command.Plural(d.Lost, "time"), d.Name, d.Entries)
	}
	return nil
}

// number converts a value to a number: data, the value decoded by its type, or, if that is nil, the bytes s, in hexadecimal,
// as a little-endian number. It reports whether that is possible.
func number(s string, data json.RawMessage) (uint64, bool) {
	if signed, err := strconv.ParseInt(string(data), 10, 64); err == nil {
		return uint64(signed), true
	} else if data != nil {
		n, err := strconv.ParseUint(string(data), 10, 64)
		return n, err == nil
	}
	b, err := hex.DecodeString(s)
	if err != nil || len(b) > 8 || bits.OnesCount(uint(len(b))) != 1 {
		return 0, false
	}
	var full [8]byte
	copy(full[:], b)
	return binary.LittleEndian.Uint64(full[:]), true
}

// cell formats a value: data, if it was decoded by its type; else the bytes s as a number if they can be one;
// else s itself.
func cell(s string, data json.RawMessage) string {
	if data != nil {
		return string(data)
	}
	if n, ok := number(s, nil); ok {
		return u64(n)
	}
	return s
}

// typedValue returns a value of an entry decoded by its type, or nil if the type is unknown.
func typedValue(e api.MapEntry, i int) json.RawMessage {
	if len(e.Data) != len(e.Values) {
		return nil
	}
	return e.Data[i]
}

func printEntries(r *command.Run, d api.MapDump) error {
	heading := []string{"KEY", "VALUE"}
	if d.Kind == "stack_trace" && (len(d.Values) == 0 || d.Values[0].Stack != nil) {
		heading[1] = "STACK"
	}
	if d.PerCPU && len(d.Values) > 0 {
		heading = []string{"KEY"}
		for i := range d.Values[0].Values {
			heading = append(heading, fmt.Sprintf("VCPU%d", i))
		}
		if _, ok := number(d.Values[0].Values[0], typedValue(d.Values[0], 0)); ok {
			heading = append(heading, "SUM")
		}
	}
	var rows [][]string
	for _, e := range d.Values {
		key := cell(e.Key, e.KeyData)
		for _, f := range e.Stack {
			rows = append(rows, []string{key, timeline.FrameText(f)})
			key = ""
		}
		if e.Stack != nil {
			continue
		}
		row, sum, numbers, negative := []string{key}, uint64(0), true, false
		for i, v := range e.Values {
			data := typedValue(e, i)
			n, ok := number(v, data)
			sum, numbers, negative = sum+n, numbers && ok, negative || bytes.HasPrefix(data, []byte("-"))
			row = append(row, cell(v, data))
		}
		switch {
		case d.PerCPU && numbers && negative:
			row = append(row, strconv.FormatInt(int64(sum), 10))
		case d.PerCPU && numbers:
			row = append(row, u64(sum))
		}
		rows = append(rows, row)
	}
	return r.Table(heading, rows)
}

// histWidth is the length of a histogram's longest bar, in characters.
const histWidth = 40

func printHist(r *command.Run, buckets []api.MapBucket) error {
	most := uint64(1)
	for _, b := range buckets {
		most = max(most, b.Count)
	}
	var rows [][]string
	for _, b := range buckets {
		rows = append(rows, []string{
			fmt.Sprintf("[%d, %d]", uint64(b.Low), uint64(b.High)), u64(b.Count), chart.Bar(b.Count, most, histWidth),
		})
	}
	return r.Table([]string{"RANGE", "COUNT", ""}, rows)
}

// completeMaps completes the first argument with names of maps.
func (a *app) completeMaps() command.Completion {
	return completeFirst(a.complete(func(ctx context.Context, c *remote.Client, _ string) (names []string) {
		ms, _ := c.Maps(ctx)
		for _, m := range ms {
			names = append(names, m.Name)
		}
		return names
	}))
}
