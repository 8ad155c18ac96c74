package openapi

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// pair is a key of a map, with its value. Maps of the document have an order.
type pair struct {
	key   string
	value any // nil: the key is left out
}

// block is a map with a line for each key.
func block(pairs ...pair) *yaml.Node { return mapping(0, pairs) }

// flow is a map on one line.
func flow(pairs ...pair) *yaml.Node { return mapping(yaml.FlowStyle, pairs) }

func mapping(style yaml.Style, pairs []pair) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Style: style}
	for _, p := range pairs {
		if v := node(p.value); v != nil {
			n.Content = append(n.Content, node(p.key), v)
		}
	}
	return n
}

// list is a list, with a line for each element unless flow is set.
func list[T any](flow bool, values []T) *yaml.Node {
	if values == nil {
		return nil
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	if flow {
		n.Style = yaml.FlowStyle
	}
	for _, v := range values {
		x, ok := any(v).(*yaml.Node)
		if !ok {
			x = scalarNode(v)
		}
		n.Content = append(n.Content, x)
	}
	return n
}

// node returns the node of a value; empty texts and nil have none.
func node(v any) *yaml.Node {
	switch v := v.(type) {
	case nil:
		return nil
	case *yaml.Node:
		return v // which may be nil
	case string:
		if v == "" {
			return nil
		}
	}
	return scalarNode(v)
}

// scalarNode is the node of a value that may be empty.
func scalarNode(v any) *yaml.Node {
	n := &yaml.Node{}
	if err := n.Encode(v); err != nil {
		panic(fmt.Sprintf("BUG: %v has no YAML: %v", v, err))
	}
	return n
}
