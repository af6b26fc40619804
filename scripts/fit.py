import logging
from pathlib import Path

from modelbudget.accelerators import accelerators
from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.fit import cells, fit_table, totals
from modelbudget.jobs import start_log
from modelbudget.measure.kept import measure_new
from modelbudget.sweep import FITS
from modelbudget.workflow import MEASUREMENTS, MODELS

MOST_LAYERS = 128
"""Of deeper models the formula alone speaks: a trace takes a second for each hundred layers."""

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
solved = list(cells(expanded, accelerators(Path(snakemake.input.accelerators))))
measured = {}
for purpose, needs in FITS.items():
    # Dictionary: what is too large for one device and fits the next is looked at once.
    models = dict.fromkeys(
        model
        for cell in solved
        if cell.purpose == purpose
        for model in (cell.held, cell.beyond)
        if model and model[0].n_layer <= MOST_LAYERS
    )
    if models:
        where = {"quantities": sorted(needs), "device": "meta"}
        settings = expanded.sweep.measure.model_copy(update=where)
        found = measure_new(models, settings, snakemake.threads, MEASUREMENTS)
        of_digests = totals(found.table, purpose)
        for model in models:
            digests = tuple(record.digest() for record in model)
            if digests in of_digests:
                measured[purpose, model] = of_digests[digests]
table = fit_table(solved, measured)
with replacing(snakemake.output.parquet) as path:
    table.write_parquet(path)
with replacing(snakemake.output.csv) as path:
    table.write_csv(path)
logging.info("confirmed by measuring: %s", dict(table["confirmed"].value_counts().rows()))
