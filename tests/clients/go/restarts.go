package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	danube "github.com/danube-messaging/danube-go"
)

// The broker goes and comes in the middle of 1500 sends; the client's own retries carry them over.
func restart(how string) func() {
	return func() {
		const total = 1500
		t := topic("restart-" + how)
		p := producer(newClient(), t, patient)
		k, messages := consumer(newClient(), t, "c", danube.Exclusive)
		defer k.Close()
		sent := make(chan error, 1)
		go func() {
			for i := range total {
				if _, err := p.Send(context.Background(), fmt.Append(nil, i), nil); err != nil {
					sent <- fmt.Errorf("send %d: %w", i, err)
					return
				}
				time.Sleep(time.Millisecond) // a steady producer
			}
			sent <- nil
		}()
		var back chan struct{}
		stored, values, acked := map[uint64]string{}, map[string]bool{}, map[uint64]bool{}
		again, late, lost := 0, 0, 0
		for len(values) < total {
			if len(values) >= 300 && back == nil {
				back = askForRestart(how)
			}
			m := next(messages, 60*time.Second)
			offset := m.MsgId.TopicOffset
			if old, ok := stored[offset]; ok {
				check(old == string(m.Payload), "offset %d was %s, is %s", offset, old, m.Payload)
				again++
			}
			stored[offset] = string(m.Payload)
			values[string(m.Payload)] = true
			if _, err := k.Ack(within(5), m); err != nil {
				lost++
			} else {
				if acked[offset] {
					late++
				}
				acked[offset] = true
			}
		}
		must(<-sent)
		<-back
		for i := range len(stored) {
			_, ok := stored[uint64(i)]
			check(ok, "offset %d is missing", i)
		}
		note("%d stored for %d sent, %d redelivered (%d of them after an answered ack), %d acks unanswered", len(stored), total, again, late, lost)
	}
}

// All of 32 producers on one connection are in the middle of a send when the broker goes. The client retries UNAVAILABLE
// only: a broker that shuts down must answer nobody with anything else, a killed one cannot choose.
func busy(how string) func() {
	return func() {
		const producers, each = 32, 100
		c, t := newClient(), topic("busy-"+how)
		made := make([]*danube.Producer, producers)
		for n := range made {
			made[n] = producer(c, t, patient, func(b *danube.ProducerBuilder) { b.WithName(fmt.Sprintf("p%d", n)) })
		}
		k, messages := consumer(newClient(), t, "c", danube.Shared)
		defer k.Close()
		var sending sync.WaitGroup
		acked, givenUp := make(chan string, producers*each), make(chan error, producers*each)
		for n, p := range made {
			sending.Add(1)
			go func() {
				defer sending.Done()
				for i := range each {
					value := fmt.Sprintf("%d/%d", n, i)
					for {
						_, err := p.Send(context.Background(), []byte(value), nil)
						if err == nil {
							acked <- value
							break
						}
						select {
						case givenUp <- err:
						default:
						}
						time.Sleep(200 * time.Millisecond) // an application's own pause before it tries again
					}
				}
			}()
		}
		var back chan struct{}
		values := map[string]bool{}
		for len(values) < producers*each {
			if len(values) >= 500 && back == nil {
				back = askForRestart(how)
			}
			m := next(messages, 60*time.Second)
			values[string(m.Payload)] = true
			_, _ = k.Ack(within(5), m) // unanswered, the message comes again
		}
		sending.Wait()
		<-back
		close(acked)
		for value := range acked {
			check(values[value], "%s was acknowledged and is lost", value)
		}
		note("%d sends given up by the client", len(givenUp))
		check(how == "kill" || len(givenUp) == 0, "a client in the middle of a send was told a status that it does not retry")
	}
}
