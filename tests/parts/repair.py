"""A broker's answers about durability, for repairs."""

import json

from ister.rpc import ister_v1_pb2 as pb
from parts.lake import TOPIC


class FakeBroker:
    """Answers ListTopics with one topic, whose offsets may change from answer to answer."""

    def __init__(self, *answers, lake=True):
        self.answers = list(answers)
        self.woken = []
        self.others = []
        self.policies = json.dumps({"lake": lake})

    def ask(self, method, request, _answer):
        if method.endswith("/WakePipeline"):
            self.woken.append((request.topic, request.generation))
            return pb.WakePipelineResponse()
        offsets = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        topic = pb.Topic(
            name=str(TOPIC), generation=1, dispatch=pb.DISPATCH_RELIABLE, policies=self.policies, offsets=offsets
        )
        return pb.ListTopicsResponse(topics=[topic, *self.others])


def iceberg_offsets(*, log_start, cloud=None, end=30):
    """What a broker with `storage.type: iceberg` answers: `start` is 0, as the table holds what log and objects do not."""
    offsets = pb.Offsets(start=0, next=end, synced=end, log_start=log_start, lake_upto=end)
    if cloud is not None:
        offsets.cloud_start, offsets.cloud_stop = cloud
    return offsets
