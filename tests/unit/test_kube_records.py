"""The fake API server keeps single objects as the real one does: by the table that both are held against."""

import json
from typing import Any

import aiohttp
import pytest

from tests.unit import kube_records as records
from tests.unit.kube_fake import FakeApi
from tests.unit.kube_records import Answer


@pytest.mark.parametrize("case", records.CONTRACT)
async def test_the_fake_server_answers_as_the_real_one(case: str) -> None:
    async with FakeApi().served() as server, aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, body: Any, kind: str) -> Answer:
            data = body if isinstance(body, bytes) else json.dumps(body) if body is not None else None
            async with session.request(method, server + path, data=data, headers={"Content-Type": kind}) as got:
                return Answer(got.status, await got.json())

        await records.keeps(ask, records.CONTRACT[case])
