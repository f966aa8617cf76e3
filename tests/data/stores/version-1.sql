-- A store as the first version of the schema had it. Kept as it was written then: do not edit.
PRAGMA application_id = 1145850434;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE gpus (
            node TEXT NOT NULL,
            gpu INTEGER NOT NULL,
            uuid TEXT NOT NULL,
            gpu_type TEXT NOT NULL,
            state TEXT NOT NULL,
            job TEXT,
            worker INTEGER,
            since REAL,
            reason TEXT NOT NULL,
            PRIMARY KEY (node, gpu)
        ) WITHOUT ROWID
        ;
INSERT INTO "gpus" VALUES('n1',0,'','V100','in use','a',0,1700000000.0,'');
INSERT INTO "gpus" VALUES('n1',1,'','V100','free',NULL,NULL,NULL,'');
CREATE TABLE history (
            id TEXT PRIMARY KEY,
            at REAL NOT NULL,
            place INTEGER NOT NULL,
            job TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            generation INTEGER NOT NULL,
            kind TEXT NOT NULL,
            cause TEXT NOT NULL,
            for_job TEXT,
            old TEXT,
            new TEXT,
            cost_seconds REAL,
            sentence TEXT NOT NULL
        ) WITHOUT ROWID
        ;
INSERT INTO "history" VALUES('one',1700000000.0,0,'a',1,1,'start','ItsTurn',NULL,NULL,'{"gpus": 2, "gpuType": "V100", "nodes": [{"name": "n1", "gpuIds": [0, 1]}]}',NULL,'starts on 2 GPUs on n1: it is its turn');
CREATE TABLE jobs (
            job TEXT PRIMARY KEY,
            phase TEXT NOT NULL,
            gpus INTEGER NOT NULL,
            placement TEXT,
            type TEXT NOT NULL,
            options TEXT NOT NULL,
            priority INTEGER NOT NULL,
            submitted_at REAL,
            started_at REAL,
            finished_at REAL,
            generation INTEGER NOT NULL,
            iteration REAL NOT NULL,
            iterations_total REAL,
            iterations_per_second REAL NOT NULL,
            eta_seconds REAL,
            reshapes INTEGER NOT NULL,
            reason TEXT NOT NULL
        ) WITHOUT ROWID
        ;
INSERT INTO "jobs" VALUES('a','Running',2,'{"gpus": 2, "gpuType": "V100", "nodes": [{"name": "n1", "gpuIds": [0, 1]}]}','{"model": "resnet50", "dataset": "imagenet", "batchSize": 256}','[1, 2, 4]',0,1700000000.0,NULL,NULL,0,0.0,NULL,0.0,NULL,0,'');
CREATE TABLE profiles (
            model TEXT NOT NULL,
            dataset TEXT NOT NULL,
            batch_size INTEGER NOT NULL,
            revision INTEGER NOT NULL,
            tickets TEXT NOT NULL,
            document TEXT,
            PRIMARY KEY (model, dataset, batch_size)
        );
INSERT INTO "profiles" VALUES('resnet50','imagenet',256,1,'[["first", 7]]','{"apiVersion": "dljob.io/v1alpha1", "kind": "Profile", "type": {"model": "resnet50", "dataset": "imagenet", "batchSize": 256}, "speeds": [{"gpus": 2, "nodes": 1, "gpuType": "V100", "iterationsPerSecond": 4.0, "weight": 1.0, "recent": [4.0], "seenAt": 1700000000.0}, {"gpus": 4, "nodes": 1, "gpuType": "V100", "iterationsPerSecond": 8.0, "weight": 1.0, "recent": [8.0], "seenAt": 1700000000.0}], "accuracy": [{"iteration": 10.0, "value": 0.25}], "costs": {"podInitialization": 0.0, "podInitializationPerGpu": 0.0, "processInitialization": 0.0, "processInitializationPerGpu": 0.0, "checkpoint": 3.5, "processTermination": 0.0, "podTermination": 0.0}, "costSamples": {"checkpoint": [3.5]}}');
INSERT INTO "profiles" VALUES('bert','',0,2,'[]',NULL);
CREATE INDEX history_by_time ON history (at, place, id);
CREATE INDEX history_by_job ON history (job, at, place, id);
COMMIT;
