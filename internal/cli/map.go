package cli

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

func (a *app) mapCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "map",
		Short: "Look into the maps of attached programs",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.mapListCmd(), a.mapDumpCmd())
	return cmd
}

func (a *app) mapListCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the maps of attached programs",
		Long: `List the maps of attached programs: number, name, kind, bytes of a key and of a
value, entries (of a ring its bytes), bytes of memory, where that memory is (guest:
programs in the guest see it, too) and the probes whose programs refer to it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			ms, err := c.Maps(cmd.Context())
			if err != nil {
				return err
			}
			if a.format == "json" {
				return a.printJSON(api.MapList{Maps: ms})
			}
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
			return a.table([]string{"ID", "NAME", "KIND", "KEY", "VALUE", "ENTRIES", "BYTES", "MEMORY", "PROBES"}, rows)
		},
	}
}

func (a *app) mapDumpCmd() *cobra.Command {
	var values bool
	cmd := &cobra.Command{
		Use:   "dump MAP",
		Short: "Print what is in a map",
		Long: `Print what is in a map, by number or name. Keys and values of 1, 2, 4 or 8 bytes are
printed as numbers, others as bytes in hexadecimal; a per-CPU map has a column for each
vCPU, and the sum where the values are numbers. A map of 64 counters of 8 bytes is
printed as a log2 histogram, the vCPUs added up; --values prints its numbers. Of a
ring there are counts: its records go to 'guestprobe trace'.`,
		Example: `  guestprobe map dump by_arg
  guestprobe map dump nanoseconds --format json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("say which map: a number or a name of 'guestprobe map list'")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			d, err := c.Map(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case a.format == "json":
				return a.printJSON(d)
			case d.Ring != nil:
				r := d.Ring
				return a.table([]string{"READ", "LOST", "DISCARDED", "CORRUPTED", "PENDING-BYTES"},
					[][]string{{u64(r.Read), u64(r.Lost), u64(r.Discarded), u64(r.Corrupted), u64(r.Pending)}})
			case d.Hist && !values:
				return a.printHist(d.Buckets)
			}
			if err := a.printEntries(d); err != nil {
				return err
			}
			if d.Truncated {
				a.note("The map has more entries than these %d.", len(d.Values))
			}
			return nil
		},
		ValidArgsFunction: a.completeMaps,
	}
	cmd.Flags().BoolVar(&values, "values", false, "print the numbers of a histogram")
	return cmd
}

// number reads bytes in hexadecimal as a little-endian number.
func number(s string) (uint64, bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) > 8 || bits.OnesCount(uint(len(b))) != 1 {
		return 0, false
	}
	var full [8]byte
	copy(full[:], b)
	return binary.LittleEndian.Uint64(full[:]), true
}

// cell prints bytes in hexadecimal: as a number where they are one.
func cell(s string) string {
	if n, ok := number(s); ok {
		return u64(n)
	}
	return s
}

func (a *app) printEntries(d api.MapDump) error {
	heading := []string{"KEY", "VALUE"}
	if d.PerCPU && len(d.Values) > 0 {
		heading = []string{"KEY"}
		for i := range d.Values[0].Values {
			heading = append(heading, fmt.Sprintf("VCPU%d", i))
		}
		if _, ok := number(d.Values[0].Values[0]); ok {
			heading = append(heading, "SUM")
		}
	}
	var rows [][]string
	for _, e := range d.Values {
		row, sum, numbers := []string{cell(e.Key)}, uint64(0), true
		for _, v := range e.Values {
			n, ok := number(v)
			sum, numbers = sum+n, numbers && ok
			row = append(row, cell(v))
		}
		if d.PerCPU && numbers {
			row = append(row, u64(sum))
		}
		rows = append(rows, row)
	}
	return a.table(heading, rows)
}

// histWidth is the length of a histogram's longest bar.
const histWidth = 40

func (a *app) printHist(buckets []api.MapBucket) error {
	most := uint64(1)
	for _, b := range buckets {
		most = max(most, b.Count)
	}
	var rows [][]string
	for _, b := range buckets {
		hi, lo := bits.Mul64(b.Count, histWidth)
		n, _ := bits.Div64(hi, lo, most)
		rows = append(rows, []string{
			fmt.Sprintf("[%d, %d]", uint64(b.Low), uint64(b.High)), u64(b.Count), "|" + strings.Repeat("@", int(n)) + strings.Repeat(" ", histWidth-int(n)) + "|",
		})
	}
	return a.table([]string{"RANGE", "COUNT", ""}, rows)
}

// completeMaps completes the names of maps.
func (a *app) completeMaps(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd.Context(), func(ctx context.Context, c *client.Client) []string {
		ms, err := c.Maps(ctx)
		if err != nil {
			return nil
		}
		var names []string
		for _, m := range ms {
			if strings.HasPrefix(m.Name, prefix) {
				names = append(names, m.Name)
			}
		}
		return names
	})
}
