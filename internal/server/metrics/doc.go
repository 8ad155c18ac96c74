// Package metrics is what a daemon and its guest have counted in the form that Prometheus
// scrapes. It asks for the counts when it is scraped, and keeps none.
package metrics
