"""The emptiest nodes of a cluster are found without a scan of all nodes."""

import heapq
import random

from dljob.core.model import Cluster, Node, NodeName
from dljob.core.placement.free_gpus import Room


def test_emptiest_nodes_match_a_full_scan():
    for seed in range(4):
        chance = random.Random(seed)
        nodes = [
            Node.of(f"n{number:03}", chance.choice([4, 8]), chance.choice(["V100", "P100"]))
            for number in range(chance.randint(1, 120))
        ]
        room = Room(Cluster(nodes))
        for node in nodes:
            room.take({node.name: chance.randint(0, room.nodes[node.name])})
        but = frozenset(NodeName(node.name) for node in chance.sample(nodes, len(nodes) // 4))
        for kind in room.cluster.types:
            there = [
                (free, name)
                for name, free in room.nodes.items()
                if room.cluster.by_name[name].gpu_type == kind and name not in but
            ]
            for most in (1, 3, 16, 200):
                assert room.gaps.rank_emptiest(kind, most, but=but) == heapq.nlargest(most, there)
