// The official Go client against a broker: driver URL [SCENARIO…]. One line tells of each scenario (../README.md).
package main

import (
	"fmt"
	"os"
	"slices"
	"time"
)

const scenarioMax = 90 * time.Second

var scenarios = []struct {
	name string
	run  func()
}{
	{"exclusive", exclusive},
	{"shared", shared},
	{"partitions", partitions},
	{"key-shared", keyShared},
	{"key-filters", keyFilters},
	{"nack", nack},
	{"large", large},
	{"too-large", tooLarge},
	{"first-message", firstMessage},
	{"schema", schema},
	{"reopen", reopen},
	{"many", many},
	{"headers", headers},
	{"unread", unread},
	{"deadline", deadline},
	{"cancel", cancelled},
	{"gzip", compressed},
	{"metadata", metadataAndTexts},
	{"unimplemented", unimplemented},
	{"restart-kill", restart("kill")},
	{"restart-term", restart("term")},
	{"busy-kill", busy("kill")},
	{"busy-term", busy("term")},
}

func main() {
	url = os.Args[1]
	wanted, failed := os.Args[2:], false
	for _, scenario := range scenarios {
		if len(wanted) > 0 && !slices.Contains(wanted, scenario.name) {
			continue
		}
		began := time.Now()
		why := outcome(scenario.run)
		took := time.Since(began).Seconds()
		if why == nil {
			fmt.Printf("ok %s (%.1f s)\n", scenario.name, took)
		} else {
			failed = true
			fmt.Printf("FAIL %s: %v (%.1f s)\n", scenario.name, why, took)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// What a scenario panicked with; nil when it went well.
func outcome(scenario func()) any {
	done := make(chan any, 1)
	go func() {
		defer func() { done <- recover() }()
		scenario()
	}()
	select {
	case why := <-done:
		return why
	case <-time.After(scenarioMax):
		return fmt.Sprintf("no end after %v", scenarioMax)
	}
}
