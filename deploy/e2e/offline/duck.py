"""Asks DuckDB what `tpotscope report` answers: the utilization of the GPU during each request's decode, and TPOT by output length.

Three formulations of one join, each from Parquet files to the answer, with one number of threads. They must agree.
"""

import argparse
import json
import statistics
import time

import duckdb

ANSWER = """
select width_bucket_ as bin, count(*) as requests,
       quantile_cont((last_ns - first_ns) / 1e9 / (tokens - 1), [0.5, 0.9, 0.99]) as tpot_s,
       avg(dram) as dram, avg(sm) as sm, avg(tensor) as tensor, count(dram) as covered
from (select *, case when tokens < 16 then 0 when tokens < 64 then 16 when tokens < 256 then 64 else 256 end as width_bucket_
      from joined where tokens >= 2)
group by 1 order by 1
"""

# An equality beside the inequalities makes DuckDB hash on the GPU and try all pairs of each, for hours. Times shifted apart
# by GPU need none, and it sorts instead.
RANGE = """
with r as (select *, first_ns + gpu * 1000000000000000 as lo, last_ns + gpu * 1000000000000000 as hi from requests),
w as (select *, start_ns + gpu * 1000000000000000 as lo, end_ns + gpu * 1000000000000000 as hi from windows),
joined as (
  select r.ref, any_value(r.tokens) as tokens, any_value(r.first_ns) as first_ns, any_value(r.last_ns) as last_ns,
         avg(w.dram) as dram, avg(w.sm) as sm, avg(w.tensor) as tensor
  from r left join w on w.lo >= r.lo and w.hi <= r.hi
  group by r.ref)
""" + ANSWER

BUCKETED = """
with cut as (
  select r.*, unnest(range(r.first_ns // 1000000000, r.last_ns // 1000000000 + 1)) as second from requests r),
binned as (select *, start_ns // 1000000000 as second from windows),
joined as (
  select r.ref, any_value(r.tokens) as tokens, any_value(r.first_ns) as first_ns, any_value(r.last_ns) as last_ns,
         avg(w.dram) as dram, avg(w.sm) as sm, avg(w.tensor) as tensor
  from cut r left join binned w
    on w.gpu = r.gpu and w.second = r.second and w.start_ns >= r.first_ns and w.end_ns <= r.last_ns
  group by r.ref)
""" + ANSWER

# Running sums turn a mean over windows into a difference of two rows, which two ASOF joins find.
ASOF = """
with running as (
  select gpu, start_ns, end_ns, row_number() over w as n, sum(dram) over w as dram, sum(sm) over w as sm, sum(tensor) over w as tensor
  from windows window w as (partition by gpu order by start_ns)),
opened as (
  select r.*, w.n as n0, w.dram as dram0, w.sm as sm0, w.tensor as tensor0
  from requests r asof left join running w on w.gpu = r.gpu and w.start_ns < r.first_ns),
closed as (
  select o.*, w.n as n1, w.dram as dram1, w.sm as sm1, w.tensor as tensor1
  from opened o asof left join running w on w.gpu = o.gpu and w.end_ns <= o.last_ns),
joined as (
  select ref, tokens, first_ns, last_ns,
         case when n1 > coalesce(n0, 0) then (dram1 - coalesce(dram0, 0)) / (n1 - coalesce(n0, 0)) end as dram,
         case when n1 > coalesce(n0, 0) then (sm1 - coalesce(sm0, 0)) / (n1 - coalesce(n0, 0)) end as sm,
         case when n1 > coalesce(n0, 0) then (tensor1 - coalesce(tensor0, 0)) / (n1 - coalesce(n0, 0)) end as tensor
  from closed)
""" + ANSWER

WAYS = {"asof": ASOF, "range": RANGE, "bucketed": BUCKETED}


def ask(folder, sql, threads):
    con = duckdb.connect(config={"threads": threads})
    for name in ("windows", "requests"):
        con.execute(f"create view {name} as select * from read_parquet('{folder}/{name}.parquet')")
    began = time.perf_counter()
    rows = con.execute(sql).fetchall()
    return time.perf_counter() - began, rows


def close(a, b):
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b))
    if a is None or b is None:
        return a is b
    return abs(a - b) <= 1e-6 * max(1.0, abs(a))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--runs", type=int, default=3)
    o = p.parse_args()
    out, first = {"duckdb": duckdb.__version__, "threads": o.threads, "seconds": {}}, None
    for name, sql in WAYS.items():
        took = []
        for _ in range(o.runs):
            seconds, rows = ask(o.folder, sql, o.threads)
            took.append(seconds)
        if first is None:
            first = rows
        if not close(first, rows):
            raise SystemExit(f"{name} answers differently:\n{first}\n{rows}")
        out["seconds"][name] = statistics.median(took)
    out["requests"] = sum(r[1] for r in first)
    out["answer"] = [{"tokens_from": r[0], "requests": r[1], "tpot_s": list(r[2]), "dram": r[3], "sm": r[4], "tensor": r[5], "covered": r[6]} for r in first]
    print(json.dumps(out))


main()
