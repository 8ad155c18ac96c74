package dev

import (
	"context"
	"encoding/json"
	"runtime"
	"strings"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func sbomSpec() command.Spec {
	return command.Spec{
		Use:   "sbom DIRECTORY",
		Short: "Write a bill of materials of the programs, in CycloneDX format",
		Long: `Print the modules that the released programs are linked with, their versions and
licenses, as CycloneDX 1.6. DIRECTORY contains go.mod. The output has no date and no
serial number, so it is the same for the same commit and the same Go version.`,
		Example: `  gpdev sbom .`,
		Args:    command.ArgsBetween(1, 1, "say where go.mod is: DIRECTORY"),
		Plain:   true,
		Run: func(ctx context.Context, r *command.Run) error {
			text, err := sbom(ctx, r.Args[0])
			if err != nil {
				return err
			}
			return r.Print("%s\n", text)
		},
	}
}

// component is one of a bill's (CycloneDX 1.6, component).
type component struct {
	Type     string    `json:"type"`
	Ref      string    `json:"bom-ref"`
	Name     string    `json:"name"`
	Version  string    `json:"version,omitempty"`
	PURL     string    `json:"purl,omitempty"`
	Licences []licence `json:"licenses"`
}

type licence struct {
	Expression string `json:"expression"`
}

// library describes a module of the programs.
func (d *dependency) library() component {
	c := component{Type: "library", Name: d.Path, Version: d.Version, Licences: []licence{{d.licence}}}
	if strings.Contains(d.Path, "/") {
		c.PURL = "pkg:golang/" + d.Path + "@" + d.Version
	} else {
		// That of the Go which has built us: it builds the other programs, too. The name is that of the Go vulnerability database.
		c.Name, c.Version = "stdlib", strings.TrimPrefix(runtime.Version(), "go")
		c.PURL = "pkg:golang/stdlib@" + c.Version
	}
	c.Ref = c.Name
	return c
}

// sbom generates the bill of materials of the module in dir.
func sbom(ctx context.Context, dir string) ([]byte, error) {
	deps, err := dependencies(ctx, dir)
	if err != nil {
		return nil, err
	}
	type metadata struct {
		Component component `json:"component"`
	}
	bill := struct {
		Format     string      `json:"bomFormat"`
		Spec       string      `json:"specVersion"`
		Version    int         `json:"version"`
		Metadata   metadata    `json:"metadata"`
		Components []component `json:"components"`
	}{Format: "CycloneDX", Spec: "1.6", Version: 1}
	bill.Metadata.Component = component{Type: "application", Ref: "guestprobe", Name: "guestprobe", Version: api.Build().Version, Licences: []licence{{"Apache-2.0"}}}
	for _, d := range deps {
		bill.Components = append(bill.Components, d.library())
	}
	return json.MarshalIndent(bill, "", "  ")
}
