# Views over the records: tables and the report. Nothing is computed here, so it is not worth a cluster job.
localrules:
    table,
    report,


rule table:
    input:
        PLAN.shown,
    output:
        f"{PLAN.results}/table.{{format}}",
    log:
        f"{PLAN.results}/logs/table.{{format}}.log",
    conda:
        "environment.yaml"
    params:
        format=lambda w: plan.FORMATS[w.format],
        options=PLAN.table_options,
        version=PLAN.version,
    message:
        "{output}"
    shell:
        "computekit table {input:q} --format {params.format} {params.options} --output {output:q} 2> {log:q}"


rule report:
    input:
        PLAN.shown,
    output:
        report(f"{PLAN.results}/report.html", category="Results"),
    log:
        f"{PLAN.results}/logs/report.log",
    conda:
        "environment.yaml"
    params:
        version=PLAN.version,
    message:
        "{output}"
    shell:
        "computekit report {input:q} --output {output:q} 2> {log:q}"
