from __future__ import annotations
import time
import pytest, cojoin as cj
from tests.kafka import history as h
from tests.kafka.records import TRADE_DDL, CUSTOMER_DDL
@pytest.mark.parametrize("n",[1,2])
def test_x(spark, broker, tmp_path,n):
    hist = h.make_history(20000,2000)
    s=broker.bootstrap_servers
    t=time.time()
    for a,b in (("a",hist.trades),("b",hist.customers)):
        broker.create_topic(f"{a}{n}",4); h.fill(s,f"{a}{n}",b)
    print("filled",time.time()-t)
    def inp(topic,ddl):
        return cj.Input(cj.kafka.source(s,topic,schema=ddl,max_drift="10 minutes",max_records=5000),key="customer_id",event_time="event_time",name=topic,watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"))
    pair=cj.connect(inp(f"a{n}",TRADE_DDL),inp(f"b{n}",CUSTOMER_DDL),key_groups=2)
    t=time.time()
    q=pair.asof_join(how="left",suffixes=("","_customer")).start(output=cj.sinks.delta(str(tmp_path/"out")),checkpoint=str(tmp_path/"cp"),trigger=cj.Trigger.available_now(drain=True))
    q.await_termination(progress=True)
    print("run",time.time()-t, q.batches)
    from tests.kafka.topics import assert_conserved
    for r in assert_conserved(spark,str(tmp_path/"cp")): print(r.batch_id, r.processing_time%10**7/1000)
