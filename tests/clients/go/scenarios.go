package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	danube "github.com/danube-messaging/danube-go"
)

func exclusive() {
	c, t := newClient(), topic("exclusive")
	p := producer(c, t)
	k, messages := consumer(c, t, "c", danube.Exclusive)
	defer k.Close()
	go func() {
		for i := range 1000 {
			attributes := map[string]string{"n": fmt.Sprint(i), "kind": "x"}
			if _, err := p.Send(context.Background(), fmt.Appendf(nil, "message %d", i), attributes); err != nil {
				note("send: %v", err) // the receiving side then misses it
				return
			}
		}
	}()
	for i := range 1000 {
		m := next(messages, 20*time.Second)
		check(string(m.Payload) == fmt.Sprintf("message %d", i), "payload %q at %d", m.Payload, i)
		check(m.MsgId.TopicOffset == uint64(i), "offset %d at %d", m.MsgId.TopicOffset, i)
		check(m.Attributes["n"] == fmt.Sprint(i) && m.Attributes["kind"] == "x" && len(m.Attributes) == 2, "attributes %v", m.Attributes)
		check(m.ProducerName == "p" && m.PublishTime > 0 && m.MsgId.TopicName == t, "fields %v", m)
		ack(k, m)
	}
	none(messages, 200*time.Millisecond)
}

// What one of several consumers was given.
type delivery struct {
	who int
	m   message
	err error
}

// Two consumers, each with a connection of its own, that acknowledge all they get.
func pair(t string, kind danube.SubType) (chan delivery, func()) {
	all := make(chan delivery, 1000)
	var consumers []*danube.Consumer
	for who := range 2 {
		k, messages := consumer(newClient(), t, fmt.Sprintf("c%d", who), kind)
		consumers = append(consumers, k)
		go func() {
			for m := range messages {
				_, err := k.Ack(within(30), m)
				all <- delivery{who, m, err}
			}
		}()
	}
	time.Sleep(attached)
	return all, func() {
		for _, k := range consumers {
			k.Close()
		}
	}
}

func take(all chan delivery, at int) delivery {
	select {
	case got := <-all:
		must(got.err)
		return got
	case <-time.After(20 * time.Second):
		panic(fmt.Errorf("only %d messages", at))
	}
}

func shared() {
	t := topic("shared")
	p := producer(newClient(), t)
	all, end := pair(t, danube.Shared)
	defer end()
	for i := range 400 {
		send(p, fmt.Append(nil, i), nil)
	}
	seen, share := map[uint64]bool{}, [2]int{}
	for i := range 400 {
		got := take(all, i)
		offset := got.m.MsgId.TopicOffset
		check(string(got.m.Payload) == fmt.Sprint(offset), "payload %s at %d", got.m.Payload, offset)
		check(!seen[offset], "offset %d twice", offset)
		seen[offset] = true
		share[got.who]++
	}
	check(share[0] > 0 && share[1] > 0, "shares %v", share)
	select {
	case got := <-all:
		panic(fmt.Errorf("one too many: %v", got.m))
	case <-time.After(300 * time.Millisecond):
	}
}

func partitions() {
	c, t := newClient(), topic("partitions")
	p := producer(c, t, func(b *danube.ProducerBuilder) { b.WithPartitions(3) })
	k, messages := consumer(c, t, "c", danube.Exclusive)
	defer k.Close()
	for i := range 300 {
		send(p, fmt.Append(nil, i), nil)
	}
	offsets, seen := map[string][]uint64{}, map[string]bool{}
	for range 300 {
		m := next(messages, 20*time.Second)
		offsets[m.MsgId.TopicName] = append(offsets[m.MsgId.TopicName], m.MsgId.TopicOffset)
		seen[string(m.Payload)] = true
		ack(k, m)
	}
	check(len(seen) == 300 && len(offsets) == 3, "%d messages, %d partitions", len(seen), len(offsets))
	for name, list := range offsets {
		check(len(list) == 100, "%s has %d", name, len(list))
		for i, offset := range list {
			check(offset == uint64(i), "%s: offset %d at %d", name, offset, i)
		}
	}
}

func keyShared() {
	t := topic("keys")
	p := producer(newClient(), t)
	all, end := pair(t, danube.KeyShared)
	defer end()
	for i := range 200 {
		sendKey(p, fmt.Sprintf("%03d", i), fmt.Sprintf("key-%d", i%20))
	}
	owner, order := map[string]int{}, map[string][]string{}
	for i := range 200 {
		got := take(all, i)
		key := got.m.GetRoutingKey()
		if who, ok := owner[key]; ok {
			check(who == got.who, "key %s at both", key)
		}
		owner[key] = got.who
		order[key] = append(order[key], string(got.m.Payload))
	}
	check(len(order) == 20, "%d keys", len(order))
	for key, list := range order {
		check(len(list) == 10 && slices.IsSorted(list), "%s: %v", key, list)
	}
}

func keyFilters() {
	t := topic("filters")
	p := producer(newClient(), t)
	ka, a := consumer(newClient(), t, "a", danube.KeyShared, "eu-*")
	defer ka.Close()
	kb, b := consumer(newClient(), t, "b", danube.KeyShared, "us-?")
	defer kb.Close()
	time.Sleep(attached)
	for range 10 {
		for _, key := range []string{"eu-west", "us-1", "us-22"} {
			sendKey(p, key, key)
		}
	}
	for range 10 {
		m := next(a, 10*time.Second)
		check(m.GetRoutingKey() == "eu-west", "a got %s", m.GetRoutingKey())
		ack(ka, m)
		m = next(b, 10*time.Second)
		check(m.GetRoutingKey() == "us-1", "b got %s", m.GetRoutingKey())
		ack(kb, m)
	}
	none(a, 100*time.Millisecond)
	none(b, 100*time.Millisecond)
}

func nack() {
	c := newClient()
	for _, kind := range []danube.SubType{danube.Exclusive, danube.Shared, danube.KeyShared} {
		t := topic(fmt.Sprintf("nack%d", kind))
		p := producer(c, t)
		k, messages := consumer(c, t, "c", kind)
		defer k.Close()
		send(p, []byte("again"), nil)
		first := next(messages, 5*time.Second)
		zero, why := uint64(0), "not now"
		_, err := k.Nack(within(10), first, &zero, &why)
		must(err)
		second := next(messages, 6*time.Second)
		check(second.MsgId.TopicOffset == first.MsgId.TopicOffset && string(second.Payload) == "again", "other message %v", second)
		ack(k, second)
		none(messages, 100*time.Millisecond)
	}
}

func large() {
	c, t := newClient(), topic("large")
	p := producer(c, t)
	k, messages := consumer(c, t, "c", danube.Exclusive)
	defer k.Close()
	for _, size := range []int{1 << 20, 0, 65535, 65536, 16384, 16379, 3 << 20} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i*7 + i>>8)
		}
		send(p, data, nil)
		m := next(messages, 20*time.Second)
		check(bytes.Equal(m.Payload, data), "payload of %d differs", size)
		ack(k, m)
	}
}

func tooLarge() {
	c, t := newClient(), topic("too-large")
	p := producer(c, t)
	k, messages := consumer(c, t, "c", danube.Exclusive)
	defer k.Close()
	for _, size := range []int{4<<20 + 1, 5 << 20, 20 << 20} {
		began := time.Now()
		_, err := p.Send(within(20), make([]byte, size), nil)
		check(err != nil, "%d bytes were accepted", size)
		check(time.Since(began) < 10*time.Second && !errors.Is(err, context.DeadlineExceeded), "%d bytes hang: %v", size, err)
	}
	rawTooLarge(t)
	send(p, []byte("small"), nil)
	m := next(messages, 5*time.Second)
	check(string(m.Payload) == "small" && m.MsgId.TopicOffset == 0, "got %v", m.MsgId)
	ack(k, m)
}

func firstMessage() {
	t := topic("first")
	p := producer(newClient(), t)
	k, messages := consumer(newClient(), t, "c", danube.Exclusive)
	defer k.Close()
	none(messages, 2*time.Second)
	send(p, []byte("first"), nil)
	ack(k, next(messages, time.Second))
}

func schema() {
	c, ctx, t := newClient(), within(30), topic("schema")
	subject := fmt.Sprintf("go-subject-%d", stamp)
	definition := `{"type":"object","properties":{"msg":{"type":"string"}},"required":["msg"]}`
	id, err := c.Schema().RegisterSchema(subject).WithType(danube.SchemaTypeJSONSchema).WithSchemaData([]byte(definition)).Execute(ctx)
	must(err)
	latest, err := c.Schema().GetLatestSchema(ctx, subject)
	must(err)
	check(latest.SchemaID == id && latest.Version == 1 && string(latest.SchemaDefinition) == definition, "latest %v", latest)
	p := producer(c, t, func(b *danube.ProducerBuilder) { b.WithSchemaSubject(subject) })
	k, messages := consumer(c, t, "c", danube.Exclusive)
	defer k.Close()
	send(p, []byte(`{"msg":"hello"}`), nil)
	m := next(messages, 5*time.Second)
	check(m.GetSchemaId() == id && m.GetSchemaVersion() == 1, "schema %d %d", m.GetSchemaId(), m.GetSchemaVersion())
	ack(k, m)
	_, err = c.Schema().ConfigureTopicSchema(ctx, t, subject, "enforce", true)
	must(err)
	_, err = p.Send(within(10), []byte(`{"msg":7}`), nil)
	check(err != nil && !errors.Is(err, context.DeadlineExceeded), "an invalid payload: %v", err)
	_, err = c.Schema().GetLatestSchema(ctx, subject+"-unknown")
	check(err != nil && strings.Contains(err.Error(), "not found"), "unknown subject: %v", err)
}

func reopen() {
	t := topic("reopen")
	p := producer(newClient(), t)
	k, messages := consumer(newClient(), t, "c", danube.Exclusive)
	for i := range 5 {
		send(p, fmt.Append(nil, i), nil)
	}
	for i := range 5 {
		m := next(messages, 5*time.Second)
		if i < 2 {
			ack(k, m)
		}
	}
	k.Close()
	k, messages = consumer(newClient(), t, "c", danube.Exclusive)
	defer k.Close()
	for i := 2; i < 5; i++ {
		m := next(messages, 5*time.Second)
		check(string(m.Payload) == fmt.Sprint(i), "payload %s at %d", m.Payload, i)
		ack(k, m)
	}
	none(messages, 100*time.Millisecond)
}

func many() {
	const topics, each = 60, 50
	c := newClient()
	var all sync.WaitGroup
	failures := make(chan error, topics)
	for n := range topics {
		all.Add(1)
		go func() {
			defer all.Done()
			defer func() {
				if why := recover(); why != nil {
					failures <- fmt.Errorf("topic %d: %v", n, why)
				}
			}()
			t := topic(fmt.Sprintf("many%d", n))
			p := producer(c, t)
			k, messages := consumer(c, t, "c", danube.Exclusive)
			defer k.Close()
			go func() {
				for i := range each {
					if _, err := p.Send(context.Background(), bytes.Repeat([]byte{byte(i)}, 3000), nil); err != nil {
						note("send: %v", err) // the receiving side then misses it
						return
					}
				}
			}()
			for i := range each {
				m := next(messages, 30*time.Second)
				check(bytes.Equal(m.Payload, bytes.Repeat([]byte{byte(i)}, 3000)), "payload at %d", i)
				ack(k, m)
			}
		}()
	}
	all.Wait()
	select {
	case err := <-failures:
		panic(err)
	default:
	}
}
