# One rule for every step that gives a model, one for every step that gives a record. All that a job depends on is in
# its inputs and params, versions included, so that a change runs again exactly what depends on it.


rule model_step:
    input:
        positional=lambda w: PLAN.models[w.model].inputs,
        referenced=lambda w: PLAN.models[w.model].referenced,
    output:
        model=f"{PLAN.results}/models/{{model}}",
        record=f"{PLAN.results}/models/{{model}}.record.json",
    log:
        f"{PLAN.results}/logs/models/{{model}}.log",
    wildcard_constraints:
        model=plan.pattern(name for name in PLAN.models if name not in PLAN.folders),
    conda:
        "environment.yaml"
    threads: lambda w: cores(PLAN.models[w.model])
    resources:
        gpu=lambda w: PLAN.models[w.model].gpus,
    params:
        words=lambda w: PLAN.models[w.model].words,
        options=lambda w: PLAN.models[w.model].options,
        version=lambda w: PLAN.models[w.model].version,
    message:
        "{output.model}: computekit {params.words} {params.options}"
    shell:
        "computekit {params.words} {input.positional:q} {params.options} --output {output.model:q} > {log:q} 2>&1"


use rule model_step as folder_step with:
    output:
        model=directory(f"{PLAN.results}/models/{{model}}"),
        record=f"{PLAN.results}/models/{{model}}.record.json",
    wildcard_constraints:
        model=plan.pattern(PLAN.folders),


rule record_step:
    input:
        positional=lambda w: PLAN.records[w.record].inputs,
        referenced=lambda w: PLAN.records[w.record].referenced,
    output:
        record=f"{PLAN.results}/records/{{record}}",
    log:
        f"{PLAN.results}/logs/records/{{record}}.log",
    wildcard_constraints:
        record=plan.pattern(PLAN.records),
    conda:
        "environment.yaml"
    threads: lambda w: cores(PLAN.records[w.record])
    resources:
        gpu=lambda w: PLAN.records[w.record].gpus,
    params:
        words=lambda w: PLAN.records[w.record].words,
        options=lambda w: PLAN.records[w.record].options,
        version=lambda w: PLAN.records[w.record].version,
    message:
        "{output.record}: computekit {params.words} {params.options}"
    shell:
        "computekit {params.words} {input.positional:q} {params.options} --output {output.record:q} > {log:q} 2>&1"
