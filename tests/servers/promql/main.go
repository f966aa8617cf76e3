// Command dljob-test-promql checks rule files of Prometheus with its own parser, and tells what expressions
// say of given series, with its own engine. It is promtool without the discovery of every cloud there is.
//
//	dljob-test-promql check FILE…        each fault on a line of its own; exit status 1 if there is one
//	dljob-test-promql ask < QUESTIONS    {"load": "load 1m\n  name{…} 1 2 3", "questions": [{"expr": …, "at": 600}]}
//	                                     prints a list with the labels and values of each answer
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
)

type question struct {
	Expr string  `json:"expr"`
	At   float64 `json:"at"`
}

type sample struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("check FILE… or ask"))
	}
	switch os.Args[1] {
	case "check":
		check(os.Args[2:])
	case "ask":
		ask()
	default:
		fail(fmt.Errorf("%s is no command", os.Args[1]))
	}
}

func check(files []string) {
	status := 0
	for _, file := range files {
		_, faults := rulefmt.ParseFile(file, false)
		for _, fault := range faults {
			fmt.Fprintln(os.Stderr, fault)
			status = 1
		}
	}
	os.Exit(status)
}

func ask() {
	var asked struct {
		Load      string     `json:"load"`
		Questions []question `json:"questions"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		fail(err)
	}
	loader, err := promqltest.NewLazyLoader(asked.Load, promqltest.LazyLoaderOpts{})
	if err != nil {
		fail(err)
	}
	defer loader.Close()
	answers := [][]sample{}
	for _, each := range asked.Questions {
		answers = append(answers, answer(loader, each))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fail(err)
	}
}

func answer(loader *promqltest.LazyLoader, asked question) []sample {
	at := time.Unix(0, 0).Add(time.Duration(asked.At * float64(time.Second))).UTC()
	loader.WithSamplesTill(at, func(err error) {
		if err != nil {
			fail(err)
		}
	})
	query, err := loader.QueryEngine().NewInstantQuery(context.Background(), loader.Queryable(), nil, asked.Expr, at)
	if err != nil {
		fail(fmt.Errorf("%s: %w", asked.Expr, err))
	}
	defer query.Close()
	result := query.Exec(context.Background())
	if result.Err != nil {
		fail(result.Err)
	}
	found := []sample{}
	switch value := result.Value.(type) {
	case promql.Vector:
		for _, each := range value {
			found = append(found, sample{each.Metric.Map(), each.F})
		}
	case promql.Scalar:
		found = append(found, sample{map[string]string{}, value.V})
	}
	return found
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}
